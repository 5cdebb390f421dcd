// Runs the two copies of copy.c one after the other.
int copy_a(void);
int copy_b(void);

int main(void) { return copy_a() || copy_b() || copy_a(); }
