// nvToolsExt.h - what gcuda uses of NVTX; tests/sim/test-nvtx.c defines it. For tests only.
#ifndef GCUDA_SIM_NVTX_H
#define GCUDA_SIM_NVTX_H

int nvtxRangePushA(const char * text);
int nvtxRangePop(void);

#endif // GCUDA_SIM_NVTX_H
