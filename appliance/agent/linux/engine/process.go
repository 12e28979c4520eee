package engine

import (
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance/agent/linux/run"
)

// startOf is when the process behind a socket started: the engine, or the init that holds the socket for it and is as old as the machine's
// run. Zero where that is not known.
func startOf(socket string) (at time.Time) {
	conn, err := net.DialTimeout("unix", socket, glance)
	if err != nil {
		return at
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return at
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			at = startOfProcess(int(peer.Pid))
		}
	})
	return at
}

// startOfProcess reads the start in hundredths of a second since the machine's.
func startOfProcess(pid int) (at time.Time) {
	fields := run.Stat(pid)
	var now unix.Timespec
	if fields == nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return at
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return at
	}
	return time.Now().Add(time.Duration(ticks)*10*time.Millisecond - time.Duration(now.Nano()))
}
