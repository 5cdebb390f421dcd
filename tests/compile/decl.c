// Declarations only, as in every unit of a program but one. Uses nothing that needs the implementation at link time
// except two functions, so that two such units and one implementation make a program.
#include "gcuda.h"
#include "gcuda.h" // a second inclusion is nothing

int unit_version(void);
int unit_version(void) { return gcuda_version(); }

struct gcuda_tensor * unit_rms_norm(struct gcuda_context * ctx, struct gcuda_tensor * a);
struct gcuda_tensor * unit_rms_norm(struct gcuda_context * ctx, struct gcuda_tensor * a) {
    return gcuda_rms_norm(ctx, a, 1e-6f);
}
