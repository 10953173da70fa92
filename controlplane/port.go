package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Ports are picked below where Linux (32768) and others (49152) take the source ports of outgoing
// connections from. From there, a client that keeps dialling while the server is down could be
// given the very port it dials, and hold it. Ten thousand ports make it unlikely that all tries
// meet one that is taken.
const firstPickedPort, lastPickedPort = 20000, 29999

// listenAPI binds the API's port. A port that was asked for is used or nothing. Otherwise the port
// of the last run is preferred, so that kubeconfigs that were copied stay right; if somebody else
// has it now, another is picked and remembered in its place. memory is the file that has the port
// of the last run. The error says what to do.
func listenAPI(asked int, memory string) (*net.TCPListener, error) {
	if asked != 0 {
		l, err := bindPort(asked)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("port %d on 127.0.0.1 is taken: end what listens there or name another with --port (0 picks one)", asked)
		}
		if err != nil {
			return nil, fmt.Errorf("port %d on 127.0.0.1: %w: name another with --port (0 picks one)", asked, err)
		}
		return l, rememberPort(l, memory)
	}
	// It is only a preference: any trouble with it leads to another port.
	if content, err := os.ReadFile(memory); err == nil {
		// Whatever is not a port in there is as good as nothing remembered.
		if port, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 16); err == nil && port > 0 {
			if l, err := bindPort(int(port)); err == nil {
				return l, nil
			}
		}
	}
	const tries = 100
	for range tries {
		// A random one, so that two control planes that start at once rarely try the same.
		if l, err := bindPort(firstPickedPort + rand.IntN(lastPickedPort-firstPickedPort+1)); err == nil {
			return l, rememberPort(l, memory)
		}
	}
	return nil, fmt.Errorf("no free port on 127.0.0.1 found in %d tries between %d and %d: name one with --port",
		tries, firstPickedPort, lastPickedPort)
}

// bindPort listens on loopback only: nobody else's machine is to reach the API.
func bindPort(port int) (*net.TCPListener, error) {
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
}

// rememberPort writes the port of the listener down. If it cannot, the listener is closed.
func rememberPort(l *net.TCPListener, memory string) error {
	port := []byte(strconv.Itoa(portOf(l)) + "\n")
	// Usually it is the same, and nothing has to be written.
	if before, err := os.ReadFile(memory); err == nil && string(before) == string(port) {
		return nil
	}
	// Not synced: after a power cut another port is picked, and the kubeconfig says so.
	if err := writeAtomically(memory, port, 0o600); err != nil {
		l.Close()
		return err
	}
	return nil
}

// portOf is the port that the listener is bound to.
func portOf(l *net.TCPListener) int { return l.Addr().(*net.TCPAddr).Port }
