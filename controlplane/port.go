// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// Ports are picked below the ephemeral ranges of Linux (from 32768) and other systems (from 49152).
// Within those ranges, a client that keeps dialing while the server is down could be assigned the
// very port it dials, and hold it. With ten thousand candidates, it is unlikely that every try
// meets an occupied port.
const firstPickedPort, lastPickedPort = 20000, 29999

// listenAPI binds the API's port. An explicitly requested port is mandatory. Otherwise listenAPI
// prefers the last run's port, so that copied kubeconfigs stay valid. It reads that port from the
// file named by memory. If the port is occupied, it picks another one and records it in the file.
// Errors suggest a remedy.
func listenAPI(asked int, memory string) (*net.TCPListener, error) {
	if asked != 0 {
		l, err := bindPort(asked)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("port %d on 127.0.0.1 is taken: stop what listens there or name another with --port (0 picks one)",
				asked)
		}
		if err != nil {
			return nil, fmt.Errorf("port %d on 127.0.0.1: %w: name another with --port (0 picks one)", asked, err)
		}
		return l, rememberPort(l, memory)
	}
	// The port is only a preference: on any error, pick another.
	if content, err := os.ReadFile(memory); err == nil {
		// Treat invalid content like an empty memory.
		if port, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 16); err == nil && port > 0 {
			if l, err := bindPort(int(port)); err == nil {
				return l, nil
			}
		}
	}
	const tries = 100
	for range tries {
		// Pick a random port, so that control planes starting concurrently rarely collide.
		if l, err := bindPort(firstPickedPort + rand.IntN(lastPickedPort-firstPickedPort+1)); err == nil {
			return l, rememberPort(l, memory)
		}
	}
	return nil, fmt.Errorf("no free port on 127.0.0.1 found in %d tries between %d and %d: name one with --port",
		tries, firstPickedPort, lastPickedPort)
}

// bindPort listens on loopback only: other machines must not reach the API.
func bindPort(port int) (*net.TCPListener, error) {
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
}

// rememberPort records the listener's port. On failure it closes the listener.
func rememberPort(l *net.TCPListener, memory string) error {
	port := []byte(strconv.Itoa(portOf(l)) + "\n")
	// The port is usually unchanged, and the file needs no write.
	if before, err := os.ReadFile(memory); err == nil && string(before) == string(port) {
		return nil
	}
	// Do not sync: after a power cut another port is picked and recorded in the kubeconfig.
	if err := writeAtomically(memory, port, 0o600); err != nil {
		l.Close()
		return err
	}
	return nil
}

// portOf returns the listener's port.
func portOf(l *net.TCPListener) int { return l.Addr().(*net.TCPAddr).Port }
