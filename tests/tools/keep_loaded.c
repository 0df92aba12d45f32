/* Linked into programs built with sanitizers: shared libraries stay loaded, so that a leak report can name the driver
 * that a block came from, and lsan.supp can tell the driver's leaks from ours. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
