/*
 * Holds namespaces open and does nothing else: the first process of a pod's sandbox, and,
 * called with other arguments, of a local node. As process 1 it collects the orphans.
 */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number)
{
	(void)signal_number;
	_exit(0);
}

static void collect(int signal_number)
{
	(void)signal_number;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction on_stop = { .sa_handler = leave };
	struct sigaction on_child = { .sa_handler = collect, .sa_flags = SA_NOCLDSTOP };

	sigaction(SIGINT, &on_stop, NULL);
	sigaction(SIGTERM, &on_stop, NULL);
	sigaction(SIGCHLD, &on_child, NULL);
	for (;;)
		pause();
}
