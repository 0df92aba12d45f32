/* POSIX's, see posix.h. */
#ifndef TESTS_WINDOWS_DLFCN_H
#define TESTS_WINDOWS_DLFCN_H

#define RTLD_NOW 0
#define RTLD_LOCAL 0

void *dlopen(const char *path, int flags);                          /* libvulkan.so.1 is vulkan-1.dll */
void *dlsym(void *library, const char *name);
int dlclose(void *library);

#endif
