/* A kernel that keeps the GPU busy for as long as it is told: spin(rounds, out). */
#ifndef RATION_SPIN_H
#define RATION_SPIN_H

static const char spin_image[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry spin(.param .u64 p_rounds, .param .u64 p_out)\n{\n"
    "    .reg .pred more;\n    .reg .b32 x;\n    .reg .b64 rounds, out;\n"
    "    ld.param.u64 rounds, [p_rounds];\n    ld.param.u64 out, [p_out];\n    cvta.to.global.u64 out, out;\n"
    "    mov.u32 x, %tid.x;\nagain:\n"
    "    mad.lo.u32 x, x, 1664525, 1013904223;\n    mad.lo.u32 x, x, 1664525, 1013904223;\n"
    "    mad.lo.u32 x, x, 1664525, 1013904223;\n    mad.lo.u32 x, x, 1664525, 1013904223;\n"
    "    sub.u64 rounds, rounds, 1;\n    setp.ne.u64 more, rounds, 0;\n    @more bra again;\n"
    "    st.global.u32 [out], x;\n    ret;\n}\n";
#endif
