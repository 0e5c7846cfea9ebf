/*
 * A libnvidia-ml.so.1 for one GPU, whose UUID is in STUB_UUID. Its compute mode is STUB_MODE, and STUB_MIG says whether MIG is on;
 * STUB_INIT is what nvmlInit answers.
 */
#include <stdio.h>
#include <stdlib.h>

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

int nvmlInit_v2(void) { return number("STUB_INIT"); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = device;
    return (int)index;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    const char *uuid = getenv("STUB_UUID");
    snprintf(text, length, "%s", uuid ? uuid : "GPU-none");
    return !device;
}

int nvmlDeviceGetComputeMode(void *device, unsigned *mode) {
    *mode = (unsigned)number("STUB_MODE");
    return !device;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) {
    *now = *next = (unsigned)number("STUB_MIG");
    return !device;
}
