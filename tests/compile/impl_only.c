// The implementation alone, for programs whose other units include the declarations.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
