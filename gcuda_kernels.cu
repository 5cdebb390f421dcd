// gcuda_kernels.cu - the kernels of gcuda, one compilation unit (see gcuda.h, MIT licence).
//
// Empty so far: the CUDA backend does not exist yet, and gcuda.h computes on the CPU alone. This unit compiles with
// nvcc to an object without symbols, so that a project may already list it among its sources. What will stand here:
//
//   >>k-base      conversions, row pointers, warp and block reductions, launch()
//   then a section per family of operations, one >>op:NAME block each: notes, kernels, launcher
#include "gcuda.h"
