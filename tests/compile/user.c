// A user of the declarations, linked with impl_only.c and decl.c: two units that include them.
#include "gcuda.h"
#include "work.h"

int unit_version(void);

int main(void) { return unit_version() != GCUDA_VERSION || work(); }
