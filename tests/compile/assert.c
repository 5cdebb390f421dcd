// GCUDA_ASSERT is the user's: here one that counts.
static int n_failed = 0;
#define GCUDA_ASSERT(cond) ((void) ((cond) ? 0 : ++n_failed))
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include "work.h"

int main(void) { return work() || n_failed != 0; }
