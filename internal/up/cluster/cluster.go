package cluster

import (
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-k8s/berth/internal/cli/ask"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// Cluster is what the user asked `berth up` for.
type Cluster struct {
	DataDir      string
	Port         int
	Nodes, Zones int
	UIPort       int // of the dashboard; NoPage: there is none
	Fresh        bool
	Own          OwnNode
	Controlplane string
	Config       string // the scheduler's; may be empty
	Gates        map[string]bool
	Version      string // of Kubernetes
	// What admission gives pods that say nothing.
	NotReadySeconds, UnreachableSeconds int64

	berth      string // this executable
	kubeconfig string // in the data directory
	page       string // where the dashboard is, once it is there
}

// listParts are the processes of a cluster, in the order in which they start. Each
// prints a line that begins with "ready" when it is.
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

	parts = append(parts, supervisor.Part{Name: "nodes", Argv: c.newPart("nodes", "--count", strconv.Itoa(c.Nodes),
		"--zones", strconv.Itoa(c.Zones))})
	if c.Own.wanted {
		parts = append(parts, c.Own.supervisorPart(c))
	}

	if c.UIPort != NoPage {
		parts = append(parts, c.pagePart())
	}
	return parts
}

// newPart is the command line of a part that is a subcommand of berth itself.
func (c *Cluster) newPart(subcommand string, flags ...string) func() []string {
	return func() []string {
		return append([]string{c.berth, subcommand, "--kubeconfig", c.kubeconfigOf(subcommand)}, flags...)
	}
}

// kubeconfigOf is what the control plane writes for a component: it may do what the component does,
// and is no administrator's.
func (c *Cluster) kubeconfigOf(component string) string {
	return filepath.Join(filepath.Dir(c.kubeconfig), component+".kubeconfig")
}

// schedulerArgv prefers the scheduler alone, if it lies beside this executable:
// it takes less memory.
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
		"--address-file", filepath.Join(filepath.Dir(c.kubeconfig), ask.AddressFile),
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
	AnyPagePort = -2 // the usual one, or a free one
)

// pagePart is the dashboard as a component of berth up. When restarted it uses the same port again,
// so that an open browser tab keeps working.
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

// pageLine prints the dashboard's address.
func (c *Cluster) pageLine() string {
	if c.page == "" {
		return ""
	}
	return "  dashboard   " + c.page + "\n"
}
