// What lives how long, on the simulated device.
#define CHECKING_DEVICE "CUDA0"
#include "../test-checking.c"
