// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

// AnnotationPlayer, on the first node, identifies the process simulating the nodes of its prefix.
// Two processes simulating the same nodes would fight over every Lease and delete each other's
// nodes, and it is easy to run `berth nodes` next to `berth up` by mistake. The annotation is a
// hint, not a lock: two processes started simultaneously are not detected.
const AnnotationPlayer = "berth.dev/played-by"

// playerID identifies this process by host, process ID and start time, so that another process on
// this machine can detect whether it still runs. The start time is included because process IDs are
// reused.
func playerID() string { return playerOf(os.Getpid()) }

// playerOf identifies a running process of this machine.
func playerOf(pid int) string {
	// If the host name is unknown, two machines could be mistaken for one; the start time makes
	// that unlikely.
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, pid, startOf(pid))
}

// startOf returns the start time of a process in clock ticks since boot; "" if it does not run or
// the system lacks /proc. It stays the same for as long as the process runs. A zombie counts as
// ended.
func startOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name in parentheses may contain any characters; the start time is the 20th field after
	// it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// checkPlayer returns an error if another process on this machine simulates one of the nodes.
// Processes on other machines, and on systems without /proc, cannot be detected.
func checkPlayer(nodes []*v1.Node, shape *simkubelet.Shape) error {
	for _, node := range nodes {
		name := node.Annotations[AnnotationPlayer]
		if !shape.Names(node.Name) || name == "" || name == playerID() {
			continue
		}
		parts := strings.Split(name, "/")
		// The value was not written by playerID, or was written on a system without /proc.
		if len(parts) != 3 || parts[2] == "" {
			continue
		}
		if pid, err := strconv.Atoi(parts[1]); err == nil && name == playerOf(pid) {
			return fmt.Errorf("nodes %s... are already simulated by process %d: choose other names with --name-prefix, "+
				"or restart that one with more nodes",
				shape.Prefix, pid)
		}
	}
	return nil
}

// signAsPlayer records on the first node that this process simulates it. The annotation of one node
// is enough, because a process simulates all nodes of its prefix or none.
func signAsPlayer(ctx context.Context, client kubernetes.Interface, shape *simkubelet.Shape) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationPlayer: playerID()}}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, shape.Name(1), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
