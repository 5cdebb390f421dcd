// Every operation on the CPU backend against float64 references; the harness and the command line are in test-ops.h and
// test.h, the references in ops-*.h, one family after the other.
#define TEST_COUNTS_CASES
#include "test-ops.h"

#include "ops-copy.h"
#include "ops-elementwise.h"
#include "ops-norm.h"
#include "ops-matmul.h"
#include "ops-attention.h"
#include "ops-conv.h"
#include "ops-recurrent.h"
#include "ops-mixed.h"
#include "ops-refuse.h"
