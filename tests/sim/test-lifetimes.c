// What lives how long, on the simulated device.
#define LIFETIMES_DEVICE "CUDA0"
#include "../test-lifetimes.c"
