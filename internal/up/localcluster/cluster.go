// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/evictionrequest/requestcontroller"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/scheduler/options"
	"github.com/berth-k8s/berth/internal/up/supervisor"
	"github.com/berth-k8s/berth/internal/usage"
)

// Cluster holds the flags of `berth up`.
type Cluster struct {
	DataDir            string
	Port, Nodes, Zones int
	UIPort             int // port of the dashboard; NoPage: no dashboard
	ServePort          int // port of the query service; 0: none
	Fresh              bool
	Own                OwnNode
	Controlplane       string
	Config             string // scheduler configuration file; may be empty
	Gates              map[string]bool
	Version            string // Kubernetes version
	// GuardEvictions holds evictions until a replacement is ready.
	GuardEvictions bool
	Guard          evictionguard.Options
	// Default toleration seconds set by admission.
	NotReadySeconds, UnreachableSeconds int64

	berth      string // this executable
	kubeconfig string // file in the data directory
	page       string // address of the running dashboard
}

// listParts returns the processes of a cluster in start order. Except for the kubelet, each reports
// readiness with a line beginning with "ready".
func (c *Cluster) listParts() []supervisor.Part {
	parts := []supervisor.Part{
		{Name: "controlplane", OwnLog: true, Argv: c.controlplaneArgv},
	}
	if !c.Own.berth.wanted() {
		parts = append(parts,
			supervisor.Part{Name: "scheduler", Argv: c.schedulerArgv},
			supervisor.Part{Name: "controller", Argv: c.newPart("controller", append([]string{"--leader-elect=false",
				"--health-bind-address", "127.0.0.1:0"}, c.controllerFlags()...)...)})
	}

	if c.GuardEvictions {
		parts = append(parts, supervisor.Part{Name: "webhook", Argv: c.newPart("webhook", append(c.Guard.WebhookFlags(),
			"--guard-evictions", "--rules=false", "--namespace", metav1.NamespaceSystem, "--bind-address", "127.0.0.1:0",
			"--advertise-host", "127.0.0.1", "--health-bind-address", "127.0.0.1:0", "--shutdown-delay", "0s")...)})
	}

	parts = append(parts, supervisor.Part{Name: "nodes", Argv: c.newPart("nodes", "--count", strconv.Itoa(c.Nodes),
		"--zones", strconv.Itoa(c.Zones))})
	if c.Own.wanted {
		parts = append(parts, c.Own.supervisorPart(c))
	}

	if c.UIPort != NoPage {
		parts = append(parts, c.pagePart())
	}
	if c.ServePort != 0 {
		parts = append(parts, supervisor.Part{Name: "serve", Argv: c.newPart("serve", "--secure-port", strconv.Itoa(c.ServePort))})
	}
	return parts
}

// newPart returns the command line of a part that is a subcommand of berth itself.
func (c *Cluster) newPart(subcommand string, flags ...string) func() []string {
	return func() []string {
		return append([]string{c.berth, subcommand, "--kubeconfig", c.kubeconfigOf(subcommand)}, flags...)
	}
}

// kubeconfigOf returns the control plane's kubeconfig for a component: limited to the component's
// permissions, and not an administrator's.
func (c *Cluster) kubeconfigOf(component string) string {
	return filepath.Join(filepath.Dir(c.kubeconfig), component+".kubeconfig")
}

// schedulerArgv prefers the scheduler-only executable next to this one, if any, because it needs
// less memory.
func (c *Cluster) schedulerArgv() []string {
	argv := []string{c.berth, "scheduler"}
	if alone := filepath.Join(filepath.Dir(c.berth), "berth-scheduler"); exists(alone) {
		argv = []string{alone}
	}
	return append(append(argv, "--kubeconfig", c.kubeconfigOf("scheduler")), c.schedulerFlags()...)
}

func (c *Cluster) schedulerFlags() []string {
	flags := []string{
		"--leader-elect=false", "--secure-port", "0", "--health-bind-address", "127.0.0.1:0",
		"--feature-gates", c.schedulerGates(),
		"--address-file", filepath.Join(filepath.Dir(c.kubeconfig), query.AddressFile),
	}
	if c.Config != "" {
		flags = append(flags, "--config", c.Config)
	}
	return flags
}

func (c *Cluster) controlplaneArgv() []string {
	argv := []string{c.Controlplane, "--data-dir", filepath.Dir(c.kubeconfig), "--node-bootstrap"}
	if c.Port != 0 {
		argv = append(argv, "--port", strconv.Itoa(c.Port))
	}
	if c.GuardEvictions {
		argv = append(argv, "--guard-evictions")
	}
	if services := serviceRange(filepath.Dir(c.kubeconfig)); services != defaultServiceRange {
		argv = append(argv, "--service-cluster-ip-range", services)
	}
	argv = append(append(argv, c.controlplaneGates()...), c.Own.controlplaneFlags()...)
	return append(argv, "--default-not-ready-toleration-seconds", strconv.FormatInt(c.NotReadySeconds, 10),
		"--default-unreachable-toleration-seconds", strconv.FormatInt(c.UnreachableSeconds, 10))
}

// Values of UIPort that are not ports.
const (
	NoPage      = -1
	AnyPagePort = -2 // the usual port, or else a free port
)

// pagePart is the dashboard as a component of berth up. It keeps its port across restarts, so that
// an open browser tab keeps working.
func (c *Cluster) pagePart() supervisor.Part {
	return supervisor.Part{
		Name: "ui",

		Argv: func() []string {
			argv := []string{c.berth, "ui", "--kubeconfig", c.kubeconfigOf("ui"), "--token-file", c.pageToken()}
			switch address, err := url.Parse(c.page); {
			case c.page != "" && err == nil:
				argv = append(argv, "--port", address.Port())
			case c.UIPort >= 0:
				argv = append(argv, "--port", strconv.Itoa(c.UIPort))
			}
			return argv
		},

		Ready: func(line string) bool {
			address, ready := strings.CutPrefix(line, "ready ")
			if ready {
				c.page = address
			}
			return ready
		},
	}
}

// pageTokenFile is in the data directory.
const pageTokenFile = "ui.token"

func (c *Cluster) pageToken() string {
	return filepath.Join(filepath.Dir(c.kubeconfig), pageTokenFile)
}

// pageLine returns the line with the dashboard's address.
func (c *Cluster) pageLine() string {
	if c.page == "" {
		return ""
	}
	return "  dashboard   " + c.page + "\n"
}

// compareTolerations is a gate that is on by default in the control plane, so the scheduler must
// honour it.
const compareTolerations = "TaintTolerationComparisonOperators"

// CheckGates rejects gates not supported by the scheduler. The control plane rejects unknown ones.
func (c *Cluster) CheckGates() error {
	_, err := groups.GatesOf(c.Gates)
	return usage.Of(err)
}

// evictionRequests is the gate of the EvictionRequest API, for which upstream has no controller
// yet.
const evictionRequests = "EvictionRequestAPI"

// answersEvictionRequests reports whether the API server serves EvictionRequests.
func (c *Cluster) answersEvictionRequests() bool {
	on, set := c.Gates[evictionRequests]
	return on || !set && c.Gates["AllAlpha"]
}

// controllerFlags returns the flags of berth controller implied by the gates and flags.
func (c *Cluster) controllerFlags() (flags []string) {
	if c.answersEvictionRequests() {
		flags = append(flags, "--controllers", "*,"+requestcontroller.Name)
	}
	if c.GuardEvictions {
		flags = append(flags, "--controllers", "*,"+movecontroller.GuardName, "--guard-share", fmt.Sprint(c.Guard.Share))
		flags = append(flags, c.Guard.WebhookFlags()...)
	}
	return flags
}

// controlplaneGates returns the flags that set the gates in the API server and the controllers and,
// for pod groups and EvictionRequests, enable the API.
func (c *Cluster) controlplaneGates() (flags []string) {
	upstreams := maps.Clone(c.Gates)
	maps.DeleteFunc(upstreams, func(name string, _ bool) bool { return options.IsOwn(name) })
	if len(upstreams) > 0 {
		flags = append(flags, "--feature-gates", gatesText(upstreams))
	}
	var served []string
	if on, err := groups.GatesOf(c.Gates); err == nil && on.Generic {
		served = append(served, "scheduling.k8s.io/v1beta1=true")
		if on.Composite {
			served = append(served, "scheduling.k8s.io/v1alpha3=true")
		}
	}

	if c.answersEvictionRequests() {
		served = append(served, "lifecycle.k8s.io/v1alpha1=true")
	}
	if len(served) > 0 {
		flags = append(flags, "--runtime-config", strings.Join(served, ","))
	}
	return flags
}

// schedulerGates returns the gates honoured by the scheduler, including those on by default in the
// control plane.
func (c *Cluster) schedulerGates() string {
	gates := map[string]bool{compareTolerations: true}
	for name, on := range c.Gates {
		if name == "AllAlpha" || name == "AllBeta" || options.Honours(name) {
			gates[name] = on
		}
	}
	return gatesText(gates)
}

func gatesText(gates map[string]bool) string { return cliflag.NewMapStringBool(&gates).String() }
