// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/durable"
)

// Program is the name of the executable.
const Program = "kubelet"

// DefaultEndpoint is containerd's default CRI endpoint.
const DefaultEndpoint = "unix:///run/containerd/containerd.sock"

// Kubelet is one kubelet of this machine. Nothing is written to disk before Write.
type Kubelet struct {
	// Program is the executable.
	Program string
	// Root is the folder of its state and of its pods' volumes.
	Root string
	// Name is the node's name.
	Name string
	// Addresses holds the node's addresses, one for each IP family; if empty, the kubelet detects
	// them.
	Addresses string
	// Labels holds the labels with which the kubelet registers the node.
	Labels map[string]string
	// Bootstrap, if set, is a kubeconfig with a token that lets the kubelet request its
	// certificate.
	Bootstrap string
	// Kubeconfig is read or, with Bootstrap, written by the kubelet.
	Kubeconfig string
	// Certificates is the folder of its certificates.
	Certificates string
	// Configuration has the fields of the KubeletConfiguration.
	Configuration map[string]any
	// Arguments are added to the command line.
	Arguments []string
}

// ReadConfiguration reads the fields of a KubeletConfiguration file. The kubelet itself validates
// them.
func ReadConfiguration(path string) (map[string]any, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if kind := fields["kind"]; kind != "KubeletConfiguration" {
		return nil, fmt.Errorf("%s: kind %v: must be KubeletConfiguration", path, kind)
	}
	return fields, nil
}

// Defaults returns Berth's deviations from the kubelet's defaults. The CA in clientCA authenticates
// clients, and the kubelet also starts with cgroups of version 1.
func Defaults(clientCA string) map[string]any {
	return map[string]any{
		"apiVersion":         "kubelet.config.k8s.io/v1beta1",
		"kind":               "KubeletConfiguration",
		"authentication":     map[string]any{"x509": map[string]any{"clientCAFile": clientCA}},
		"rotateCertificates": true,
		"failCgroupV1":       false,
		"cgroupDriver":       "cgroupfs",
	}
}

// Path returns the path of a file in the kubelet's folder.
func (k *Kubelet) Path(name string) string { return filepath.Join(k.Root, name) }

// Write writes the configuration file, and the cluster's CA that it refers to. It creates Root if
// necessary. Call it before starting the kubelet with Argv.
func (k *Kubelet) Write() error {
	if err := os.MkdirAll(k.Root, 0o750); err != nil {
		return err
	}
	if err := k.writeCA(); err != nil {
		return err
	}
	text, err := yaml.Marshal(k.Configuration)
	if err != nil {
		return err
	}
	return durable.Replace(k.configuration(), text, 0o600)
}

// configuration returns the path of Write's configuration file.
func (k *Kubelet) configuration() string { return k.Path("config.yaml") }

// ClientCA returns the path of the CA with which the kubelet verifies client certificates. It is
// the cluster's CA, copied from the kubeconfig.
func (k *Kubelet) ClientCA() string { return k.Path("client-ca.crt") }

// writeCA copies the CA from the kubeconfig to the separate file required by the kubelet.
func (k *Kubelet) writeCA() error {
	source := cmp.Or(k.Bootstrap, k.Kubeconfig)
	config, err := clientcmd.BuildConfigFromFlags("", source)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}

	ca := config.CAData
	if len(ca) == 0 && config.CAFile != "" {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return err
		}
	}

	if len(ca) == 0 {
		return errors.New(source + ": has no certificate-authority")
	}
	return durable.Replace(k.ClientCA(), ca, 0o644)
}

// Argv returns the command line. Labels are sorted to keep it stable.
func (k *Kubelet) Argv() []string {
	argv := []string{
		k.Program, "--config", k.configuration(), "--root-dir", k.Root, "--cert-dir", k.Certificates,
		"--kubeconfig", k.Kubeconfig, "--hostname-override", k.Name,
	}

	if k.Bootstrap != "" {
		argv = append(argv, "--bootstrap-kubeconfig", k.Bootstrap)
	}
	if k.Addresses != "" {
		argv = append(argv, "--node-ip", k.Addresses)
	}

	if len(k.Labels) > 0 {
		argv = append(argv, "--node-labels", labels.FormatLabels(k.Labels))
	}
	return append(argv, k.Arguments...)
}

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

// FindOrBuild finds the kubelet, and builds a missing one if this executable is in Berth's source
// tree. out receives the build's output. named is the value of --kubelet; if it is empty,
// FindOrBuild searches.
func FindOrBuild(ctx context.Context, named string, out io.Writer) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this executable: %w", err)
	}
	return findOrBuild(ctx, named, self, out)
}

// findOrBuild is FindOrBuild for an executable at self.
func findOrBuild(ctx context.Context, named, self string, out io.Writer) (string, error) {
	program, missing := find(named, self)
	if missing == nil || named != "" {
		return program, missing
	}
	tree := sourceTree(self)
	if tree == "" {
		return "", missing
	}
	return build(ctx, tree, filepath.Dir(self), out)
}

// find returns the named executable, or the one next to self, or in PATH.
func find(named, self string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("--kubelet: %w", err)
		}
		return filepath.Abs(path)
	}
	for _, candidate := range []string{filepath.Join(filepath.Dir(self), Program), Program} {
		if path, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("no kubelet beside %s nor in PATH: take it from the release's archive for Linux, "+
		"run `make build-node` in Berth's source tree, or name it with --kubelet", self)
}

var ownModule = regexp.MustCompile(`(?m)^module github\.com/berth-k8s/berth$`)

// sourceTree returns the source tree of an executable such as TREE/bin/berth, or "". It ignores the
// working directory: root would otherwise build and run files of anybody with write access there.
func sourceTree(self string) string {
	tree := filepath.Dir(filepath.Dir(self))
	text, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil || !ownModule.Match(text) {
		return ""
	}
	return tree
}

// build builds the kubelet into a folder.
func build(ctx context.Context, tree, bin string, out io.Writer) (string, error) {
	// Check for the tools first, so that the error contains a remedy rather than make's output.
	for _, tool := range []string{"make", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("no kubelet beside berth nor in PATH, and no %s in PATH to build it with: "+
				"run `make build-node` in %s as a user who has Go", tool, tree)
		}
	}
	make := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", tree, "build-node", "BIN="+bin)
	make.Stdout, make.Stderr = out, out
	if err := make.Run(); err != nil {
		return "", fmt.Errorf("make build-node in %s: %w", tree, err)
	}
	return filepath.Join(bin, Program), nil
}
