/* Descriptors in messages (SCM_RIGHTS), for the cases. */
#ifndef KNET_RIGHTS_H
#define KNET_RIGHTS_H

enum { MANY = 5 };

/* Passes `count` descriptors; what sendmsg says. */
SOME int pass(int over, const int *fds, int count)
{
    union {
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    char byte = 'p';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)count * sizeof(int))};
    memcpy(CMSG_DATA(head), fds, (size_t)count * sizeof(int));
    int sent = (int)sendmsg(over, &message, 0);
    CHECK(memcmp(CMSG_DATA(head), fds, (size_t)count * sizeof(int)) == 0); /* the program's own message is as it was */
    return sent;
}

/* Takes as many; 0 when the other end is closed. */
SOME int receive(int over, int *fds, int count, int flags)
{
    union {
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    int got = OK(recvmsg(over, &message, flags));
    if (got == 0) return 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(head && head->cmsg_type == SCM_RIGHTS);
    EQUAL(head->cmsg_len, CMSG_LEN((size_t)count * sizeof(int)));
    memcpy(fds, CMSG_DATA(head), (size_t)count * sizeof(int));
    return count;
}

#endif
