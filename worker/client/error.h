// The text behind ddprun_error(): one buffer for each thread, so that threads never see each
// other's errors and no call needs a lock or memory to fail.
#ifndef DDPRUN_WORKER_CLIENT_ERROR_H_
#define DDPRUN_WORKER_CLIENT_ERROR_H_

// Both keep the text for the calling thread and return `code`.
int ddprun_set_error(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Appends ": <text of error_number>".
int ddprun_set_errno(int code, int error_number, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

#endif  // DDPRUN_WORKER_CLIENT_ERROR_H_
