// Sanitizer builds only: modules that MPI loads stay loaded, so that LeakSanitizer can name where
// its leaks come from and tests/support/lsan.supp can match them.
extern "C" int dlclose(void* /*module*/) { return 0; }
