package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/up/datadir"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// cluster is what the user asked `berth up` for.
type cluster struct {
	dataDir      string
	port         int
	nodes, zones int
	uiPort       int // of the page; noPage: there is none
	fresh        bool
	own          ownNode
	controlplane string
	config       string // the scheduler's; may be empty
	gates        map[string]bool
	// What admission gives pods that say nothing.
	notReadySeconds, unreachableSeconds int64

	berth      string // this executable
	kubeconfig string // in the data directory
	page       string // where the page is, once it is there
}

// listParts are the processes of a cluster, in the order in which they start. Each
// prints a line that begins with "ready" when it is.
func (c *cluster) listParts() []supervisor.Part {
	parts := []supervisor.Part{
		{Name: "controlplane", OwnLog: true, Argv: c.controlplaneArgv},
	}
	if !c.own.berth.wanted() {
		parts = append(parts,
			supervisor.Part{Name: "scheduler", Argv: c.schedulerArgv},
			supervisor.Part{Name: "controller", Argv: c.newPart("controller", append([]string{"--leader-elect=false",
				"--health-bind-address", "127.0.0.1:0"}, c.controllerFlags()...)...)})
	}

	parts = append(parts, supervisor.Part{Name: "nodes", Argv: c.newPart("nodes", "--count", strconv.Itoa(c.nodes),
		"--zones", strconv.Itoa(c.zones))})
	if c.own.wanted {
		parts = append(parts, c.own.supervisorPart(c))
	}

	if c.uiPort != noPage {
		parts = append(parts, c.pagePart())
	}
	return parts
}

// newPart is the command line of a part that is a subcommand of berth itself.
func (c *cluster) newPart(subcommand string, flags ...string) func() []string {
	return func() []string {
		return append([]string{c.berth, subcommand, "--kubeconfig", c.kubeconfigOf(subcommand)}, flags...)
	}
}

// kubeconfigOf is what the control plane writes for a component: it may do what the component does,
// and is no administrator's.
func (c *cluster) kubeconfigOf(component string) string {
	return filepath.Join(filepath.Dir(c.kubeconfig), component+".kubeconfig")
}

// schedulerArgv prefers the scheduler alone, if it lies beside this executable:
// it takes less memory.
func (c *cluster) schedulerArgv() []string {
	argv := []string{c.berth, "scheduler"}
	if alone := filepath.Join(filepath.Dir(c.berth), "berth-scheduler"); pathExists(alone) {
		argv = []string{alone}
	}
	return append(append(argv, "--kubeconfig", c.kubeconfigOf("scheduler")), c.schedulerFlags()...)
}

func (c *cluster) schedulerFlags() []string {
	flags := []string{
		"--leader-elect=false", "--secure-port", "0", "--health-bind-address", "127.0.0.1:0",
		"--feature-gates", c.schedulerGates(),
		"--address-file", filepath.Join(filepath.Dir(c.kubeconfig), addressFile),
	}
	if c.config != "" {
		flags = append(flags, "--config", c.config)
	}
	return flags
}

func (c *cluster) controlplaneArgv() []string {
	argv := []string{c.controlplane, "--data-dir", filepath.Dir(c.kubeconfig), "--node-bootstrap"}
	if c.port != 0 {
		argv = append(argv, "--port", strconv.Itoa(c.port))
	}
	if services := serviceRange(filepath.Dir(c.kubeconfig)); services != defaultServiceRange {
		argv = append(argv, "--service-cluster-ip-range", services)
	}
	argv = append(append(argv, c.controlplaneGates()...), c.own.controlplaneFlags()...)
	return append(argv, "--default-not-ready-toleration-seconds", strconv.FormatInt(c.notReadySeconds, 10),
		"--default-unreachable-toleration-seconds", strconv.FormatInt(c.unreachableSeconds, 10))
}

func newUp() *cobra.Command {
	c := &cluster{gates: map[string]bool{}}
	cmd := &cobra.Command{
		Use:     "up",
		GroupID: groupTry,
		Short:   "Start a whole cluster on this machine, in the foreground",
		Long: `Start a whole cluster in the foreground: the Kubernetes API server and etcd
(process berth-controlplane), Berth's scheduler and controllers, simulated nodes,
and the dashboard.

Everything is kept in the data directory: state, kubeconfig and logs. Ctrl-C stops
the cluster; the next berth up continues with the same state, or with --fresh
starts over.`,
		Example: `  berth up                       3 nodes in 3 zones
  berth up --nodes 100 --zones 4
  berth up --fresh               forget what was there
  berth up --agent --nodes 0     this machine is the node: pods really run
  KUBECONFIG=.berth/kubeconfig kubectl get nodes`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.checkFlags(); err != nil {
				return err
			}
			return c.runUp(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.dataDir, "data-dir", dataDirFromEnv(),
		"where the cluster is kept; the kubeconfig is written into it (or $"+envDataDir+")")
	flags.IntVar(&c.port, "port", 0, "port of the API on 127.0.0.1 (default: the one used last here, or a free one)")
	flags.IntVar(&c.nodes, "nodes", 3, "simulated nodes")
	flags.IntVar(&c.zones, "zones", 3, "zones that the nodes are spread over")
	flags.StringVar(&c.config, "config", "", "a KubeSchedulerConfiguration file for the scheduler (default: upstream's defaults)")
	flags.Var(cliflag.NewMapStringBool(&c.gates), "feature-gates",
		"Kubernetes feature gates for the API server, the controllers and the scheduler, as Name=true,Other=false; "+
			"with GenericWorkload the API of pod groups is served")
	flags.Int64Var(&c.notReadySeconds, "default-not-ready-toleration-seconds", 300,
		"tolerationSeconds for not-ready nodes of pods that set none")
	flags.Int64Var(&c.unreachableSeconds, "default-unreachable-toleration-seconds", 300,
		"tolerationSeconds for unreachable nodes of pods that set none")
	flags.IntVar(&c.uiPort, "ui-port", anyPagePort,
		"port of the dashboard on 127.0.0.1; 0 takes a free one, -1 leaves it out (default: "+strconv.Itoa(uiPort)+
			", or if it is taken, a free one)")
	flags.Lookup("ui-port").DefValue = "0" // said in words
	c.own.addFlags(flags)
	flags.BoolVar(&c.fresh, "fresh", false, "start over: delete the content of the data directory, without asking")
	flags.StringVar(&c.controlplane, "controlplane", "", "the berth-controlplane to run (default: beside this executable, then in PATH)")
	return cmd
}

func (c *cluster) checkFlags() error {
	var shape nodesShape
	shape.addFlags(pflag.NewFlagSet("", pflag.ContinueOnError)) // as berth nodes has it
	shape.count, shape.zones = c.nodes, c.zones
	if _, err := shape.parseShape("--nodes"); err != nil {
		return err
	}
	if c.port < 0 || c.port > 65535 {
		return usagef("--port %d: must be between 1 and 65535", c.port)
	}
	if c.uiPort != anyPagePort && (c.uiPort < noPage || c.uiPort > 65535) {
		return usagef("--ui-port %d: must be between -1 and 65535", c.uiPort)
	}
	if c.notReadySeconds < 0 || c.unreachableSeconds < 0 {
		return usagef("--default-not-ready-toleration-seconds and --default-unreachable-toleration-seconds: must be zero or more")
	}
	if c.dataDir == "" {
		return usagef("--data-dir: must name a directory")
	}
	if c.config != "" {
		if _, err := loadConfiguration(c.config, io.Discard); err != nil { // its notes are the scheduler's to give
			return fmt.Errorf("--config: %w", err)
		}
	}
	if err := c.checkGates(); err != nil {
		return err
	}
	return c.own.checkFlags(c)
}

func (c *cluster) runUp(cmd *cobra.Command) error {
	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	began := time.Now()
	if err := c.findExecutables(); err != nil {
		return err
	}

	dir, err := datadir.Open(c.dataDir)
	if err != nil {
		return err
	}

	defer dir.Close()
	if err := c.checkPorts(); err != nil {
		return err
	}

	if c.fresh {
		if err := dir.Clear(); err != nil {
			return err
		}
	}

	c.kubeconfig = dir.Join("kubeconfig")
	if c.uiPort != noPage {
		if err := keepPageToken(c.pageToken()); err != nil {
			return fmt.Errorf("the dashboard's token: %w", err)
		}
	}

	out := &progress{out: cmd.OutOrStdout(), terminal: isTerminal(cmd.OutOrStdout())}
	if err := c.own.startNode(ctx, c, out); err != nil {
		return err
	}

	s := &supervisor.Supervisor{Dir: dir.Path, Progress: out.showStep, Trouble: out.showTrouble}
	running, end := context.WithCancel(ctx)
	defer end()
	var installed error
	err = s.Run(running, c.listParts(), func() {
		if c.own.berth.wanted() {
			if installed = c.own.berth.installManifests(ctx, c, out); installed != nil || ctx.Err() != nil {
				end()
				return
			}
		}
		out.printFinal(c.welcomeText(time.Since(began)))
	})

	err = errors.Join(err, installed, c.own.stopNode())
	if err == nil {
		out.printFinal("stopped; berth up goes on from here\n")
	}
	return err
}

// checkPorts checks that the ports that the user names are free, before anything is started or
// deleted: a component would find out seconds later, with the others running.
func (c *cluster) checkPorts() error {
	for _, named := range []struct {
		flag string
		port int
	}{{"--port", c.port}, {"--ui-port", c.uiPort}} {
		if named.port <= 0 {
			continue // left out, or any
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(named.port)))
		if err != nil {
			return fmt.Errorf("%s %d: %w: name another, or leave it out for a free one", named.flag, named.port, errors.Unwrap(err))
		}
		_ = listener.Close()
	}
	return nil
}

// findExecutables finds this executable, for the parts that are its own, and
// the control plane's, which is built apart.
func (c *cluster) findExecutables() error {
	var err error
	if c.berth, err = os.Executable(); err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if c.controlplane != "" {
		if _, err := exec.LookPath(c.controlplane); err != nil {
			return fmt.Errorf("--controlplane: %w", err)
		}
		return nil
	}

	const name = "berth-controlplane"
	for _, candidate := range []string{filepath.Join(filepath.Dir(c.berth), name), name} {
		if path, err := exec.LookPath(candidate); err == nil {
			c.controlplane = path
			return nil
		}
	}
	return fmt.Errorf("%s is neither beside %s nor in PATH: run `make build`, or name it with --controlplane", name, c.berth)
}

func (c *cluster) welcomeText(took time.Duration) string {
	berth := "berth"
	if filepath.Base(os.Args[0]) != os.Args[0] {
		berth = shellWord(os.Args[0])
	}
	if c.dataDir != defaultDataDir {
		berth = envDataDir + "=" + shellWord(c.dataDir) + " " + berth
	}
	try := []string{"kubectl get nodes -L topology.kubernetes.io/zone",
		"kubectl create deployment web --image=nginx --replicas=3", "nodes fail --node node-1 --for 2m"}
	if c.nodes == 0 && c.own.private != nil { // which can pull nothing
		try = []string{"kubectl get nodes,pods -A", "kubectl run hello --image=busybox:1 -- sleep 1000", "kubectl exec hello -- hostname"}
	} else if c.nodes == 0 { // none can fail
		try[2] = "pending -A"
	}
	return fmt.Sprintf(`
Berth is up: Kubernetes %s, %s (%.1fs)

  kubeconfig  %s
  logs        %s
%s
Try:
  %s %s
  %[7]s %[9]s
  %[7]s %[10]s

Ctrl-C stops it; the next berth up goes on from there.
`, currentVersion().Kubernetes, describeNodes(c.nodes, c.zones), took.Seconds(),
		c.kubeconfig, filepath.Join(filepath.Dir(c.kubeconfig), "*.log"), c.own.welcomeLine(c)+c.pageLine(), berth, try[0], try[1], try[2])
}

func describeNodes(nodes, zones int) string {
	if nodes == 0 {
		return "no simulated nodes"
	}
	s := answer.Count(nodes, "simulated node")
	if zones > 0 {
		s += " in " + answer.Count(min(zones, nodes), "zone")
	}
	return s
}
