// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Process is a kubelet running on this machine.
type Process struct {
	PID string
	// Endpoint is the endpoint of its container runtime.
	Endpoint string
}

// String describes the process for an error message.
func (p Process) String() string { return fmt.Sprintf("process %s, on %s", p.PID, p.Endpoint) }

// Running lists the kubelets of a machine by its /proc folder, including other users' processes and
// containers: it reads their files below /proc/PID/root.
func Running(proc string) (found []Process) {
	folders, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, folder := range folders {
		line, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err != nil { // the process has ended
			continue
		}
		argv := strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")
		if filepath.Base(argv[0]) == Program {
			found = append(found, Process{PID: filepath.Base(folder), Endpoint: endpoint(argv, filepath.Join(folder, "root"))})
		}
	}
	return found
}

// endpoint returns a kubelet's endpoint from its command line or, like the kubelet, its
// configuration file.
func endpoint(argv []string, root string) string {
	const flag = "container-runtime-endpoint"
	configured := ""
	if path := valueOf(argv, "config"); path != "" {
		if fields, err := ReadConfiguration(filepath.Join(root, path)); err == nil {
			configured, _ = fields["containerRuntimeEndpoint"].(string)
		}
	}
	return cmp.Or(valueOf(argv, flag), configured, DefaultEndpoint)
}

// valueOf returns the value of a flag, given as --flag=value or --flag value. The first of repeated
// flags counts.
func valueOf(argv []string, flag string) string {
	for i, word := range argv {
		name, value, assigned := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case !strings.HasPrefix(word, "-") || name != flag:
		case assigned:
			return value
		case i+1 < len(argv):
			return argv[i+1]
		}
	}
	return ""
}

// Refuse returns an error if a running kubelet conflicts with a new one on the endpoint. Two
// kubelets on one runtime kill each other's pods. All kubelets serve device plugins at the same
// path, so any kubelet not started by Berth is a conflict, unless named is set, which means that
// the user named the endpoint.
func Refuse(running []Process, endpoint string, named bool) error {
	for _, other := range running {
		switch {
		case SocketOf(other.Endpoint) == SocketOf(endpoint):
			return fmt.Errorf("a kubelet runs here with this container runtime (%s), and the two would terminate each other's pods: "+
				"stop it, or leave --container-runtime-endpoint out", other)
		case !named && !strings.Contains(other.Endpoint, OwnRuntime):
			return fmt.Errorf("this machine is a node already: a kubelet runs here (%s), and would lose its device plugins: "+
				"stop it, or name another runtime with --container-runtime-endpoint", other)
		}
	}
	return nil
}

// OwnRuntime is the prefix of state directories of containerd instances started by Berth.
const OwnRuntime = "berth-containerd-"

// SocketOf returns the path of an endpoint, which may lack a scheme.
func SocketOf(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }
