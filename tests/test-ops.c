// Every operation on the CPU backend against float64 references; the harness and the command line are in test-ops.h and test.h.
#include "test-ops.h"
