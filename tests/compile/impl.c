// The implementation and a program, in one file that is also compiled as C++.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include "work.h"

int main(void) { return work(); }
