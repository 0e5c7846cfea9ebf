/* A library that is loaded, and does nothing: what looks like libration.so and is none. */
int ration_does_nothing;
