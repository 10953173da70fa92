// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	v1 "k8s.io/api/core/v1"
)

const (
	loginPath    = "/org/freedesktop/login1"
	loginName    = "org.freedesktop.login1"
	loginManager = loginName + ".Manager"
)

// logind is a node's systemd-logind as far as the kubelet uses it: the kubelet delays a shutdown by
// a file that it holds open.
type logind struct {
	conn *dbus.Conn
	mu   sync.Mutex
	// delays holds the ends of pipes whose other ends the kubelet has.
	delays []pipe
}

type pipe struct{ ours, kubelets *os.File }

const busConfig = `<busconfig>
<listen>unix:path=/run/dbus/system_bus_socket</listen>
<auth>EXTERNAL</auth>
<policy context="default"><allow own="*"/><allow send_destination="*"/><allow eavesdrop="false"/></policy>
</busconfig>
`

// startLogind starts the node's system bus and logind, before its kubelet.
func (n *node) startLogind() (*logind, error) {
	config := filepath.Join(n.dir, "bus.conf")
	if err := os.WriteFile(config, []byte(busConfig), 0o600); err != nil {
		return nil, err
	}
	if err := os.Mkdir(n.path("/run/dbus"), 0o755); err != nil {
		return nil, err
	}
	if _, err := n.start("dbus", "dbus-daemon", "--nofork", "--nopidfile", "--config-file", config); err != nil {
		return nil, err
	}
	l := &logind{}
	err := poll(func() (err error) {
		l.conn, err = dbus.Connect("unix:path=" + n.path("/run/dbus/system_bus_socket"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("system bus of %s (package dbus): %w", n.name, err)
	}
	if err := l.conn.Export(l, loginPath, loginManager); err != nil {
		return nil, err
	}
	limit := prop.Map{loginManager: {"InhibitDelayMaxUSec": {Value: uint64(time.Minute.Microseconds())}}}
	if _, err := prop.Export(l.conn, loginPath, limit); err != nil {
		return nil, err
	}
	_, err = l.conn.RequestName(loginName, dbus.NameFlagDoNotQueue)
	return l, err
}

// path returns a path of this process to a file of the node.
func (n *node) path(file string) string {
	return filepath.Join("/proc", strconv.Itoa(n.holder.PID()), "root", file)
}

// Inhibit gives the caller a file. A shutdown waits until the caller has closed it.
func (l *logind) Inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	ours, kubelets, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delays = append(l.delays, pipe{ours, kubelets})
	return dbus.UnixFD(kubelets.Fd()), nil
}

// shutDown announces the shutdown, and returns when nothing delays it any longer.
func (l *logind) shutDown() error {
	l.mu.Lock()
	delays := l.delays
	l.delays = nil
	l.mu.Unlock()
	if len(delays) == 0 {
		return fmt.Errorf("the kubelet does not delay the shutdown")
	}
	if err := l.conn.Emit(loginPath, loginManager+".PrepareForShutdown", true); err != nil {
		return err
	}
	for _, delay := range delays {
		delay.kubelets.Close()
		_ = delay.ours.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadAll(delay.ours); err != nil {
			return fmt.Errorf("the kubelet still delays the shutdown: %w", err)
		}
		delay.ours.Close()
	}
	return nil
}

// slowlyEnding is a Deployment whose pods take four seconds to end.
const slowlyEnding = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: shutdown, labels: {scenario: shutdown}}
spec:
  replicas: 3
  selector: {matchLabels: {scenario: shutdown}}
  template:
    metadata: {labels: {scenario: shutdown}}
    spec:
      terminationGracePeriodSeconds: 12
      tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 10}]
      containers:
      - {name: c, image: "busybox:1", command: [sh, -c, "trap 'sleep 4; exit 0' TERM; while :; do sleep 0.1; done"]}
`

// gracefulShutdown shuts a node down, and starts it again when Berth has removed its pod.
func (c *cluster) gracefulShutdown() string {
	c.apply(slowlyEnding)
	victim := c.awaitRunning("shutdown", 3)[0]
	n := c.node(victim.Spec.NodeName)
	began, off := time.Now(), make(chan error, 1)
	var released float64
	go func() {
		err := n.logind.shutDown()
		released = time.Since(began).Seconds()
		n.kubelet.Kill() // power off
		off <- err
	}()
	tainted := c.awaitTaint(n, v1.TaintNodeNotReady, v1.TaintEffectNoExecute, true, began)
	c.between("taint", tainted, 0, 10)
	c.eventually("the pod has ended", func() error {
		if phase := c.pod(victim.Name).Status.Phase; phase != v1.PodFailed && phase != v1.PodSucceeded {
			return fmt.Errorf("its phase is %s", phase)
		}
		return nil
	})
	ended := time.Since(began).Seconds()
	c.between("the pod's end", ended, 3.5, 15)
	for _, pod := range c.awaitRunning("shutdown", 3) {
		if pod.Name != victim.Name && pod.Spec.NodeName == n.name && pod.CreationTimestamp.After(began) {
			c.Errorf("%s is on %s, which shuts down", pod.Name, n.name)
		}
	}
	replaced := time.Since(began).Seconds()
	c.must(<-off)
	c.gone(victim.Name)
	removed := time.Since(began).Seconds()
	c.between("removal after the taint", removed-tainted, tolerated-2, tolerated+8)
	c.must(n.startKubelet(filepath.Join(work, "bootstrap.kubeconfig")))
	c.awaitReady(n, true)
	return fmt.Sprintf("tainted after %.1f s, its pod ended after %.1f s, replaced after %.1f s, off after %.1f s, its pod removed %.1f s after the taint",
		tainted, ended, replaced, released, removed-tainted)
}
