// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/ui"
	"github.com/berth-k8s/berth/internal/up/datadir"
	"github.com/berth-k8s/berth/internal/up/relay"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// Run starts the cluster, prints its progress and a welcome to out, and stops it when the context
// ends.
func (c *Cluster) Run(ctx context.Context, stdout io.Writer) error {
	began := time.Now()
	if err := c.findExecutables(); err != nil {
		return err
	}

	dir, err := datadir.Open(c.DataDir)
	if err != nil {
		return err
	}

	defer dir.Close()
	if err := c.checkPorts(); err != nil {
		return err
	}

	if c.Fresh {
		if err := dir.Clear(); err != nil {
			return err
		}
	}

	c.kubeconfig = dir.Join("kubeconfig")
	if c.UIPort != NoPage {
		if err := ui.KeepToken(c.pageToken()); err != nil {
			return fmt.Errorf("the dashboard's token: %w", err)
		}
	}

	out := print.NewProgress(stdout)
	if err := c.Own.startNode(ctx, c, out); err != nil {
		return err
	}

	s := &supervisor.Supervisor{Dir: dir.Path, Progress: out.Step, Trouble: out.Trouble}
	running, end := context.WithCancel(ctx)
	defer end()
	var installed error
	err = s.Run(running, c.listParts(), func() {
		if c.Own.berth.wanted() {
			if installed = c.Own.berth.installManifests(ctx, c, out); installed != nil || ctx.Err() != nil {
				end()
				return
			}
		}
		out.Final(c.welcomeText(time.Since(began)))
	})

	err = errors.Join(err, installed, c.Own.stopNode())
	if err == nil {
		out.Final("stopped; berth up continues from here\n")
	}
	return err
}

// checkPorts verifies that user-specified ports are free before anything is started or deleted: a
// component would fail only seconds later, after the other parts have started.
func (c *Cluster) checkPorts() error {
	for _, named := range []struct {
		flag string
		port int
	}{{"--port", c.Port}, {"--ui-port", c.UIPort}, {"--serve-port", c.ServePort}} {
		if named.port <= 0 {
			continue // disabled, or any free port
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(named.port)))
		if err != nil {
			return fmt.Errorf("%s %d: %w: name another, or leave it out for a free one", named.flag, named.port, errors.Unwrap(err))
		}
		_ = listener.Close()
	}
	return nil
}

// findExecutables finds this executable, whose subcommands are parts of the cluster, and the
// control plane's executable, which is built separately.
func (c *Cluster) findExecutables() error {
	var err error
	if c.berth, err = os.Executable(); err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if c.Controlplane != "" {
		if _, err := exec.LookPath(c.Controlplane); err != nil {
			return fmt.Errorf("--controlplane: %w", err)
		}
		return nil
	}

	const name = "berth-controlplane"
	for _, candidate := range []string{filepath.Join(filepath.Dir(c.berth), name), name} {
		if path, err := exec.LookPath(candidate); err == nil {
			c.Controlplane = path
			return nil
		}
	}
	return fmt.Errorf("%s is neither beside %s nor in PATH: run `make build`, or name it with --controlplane", name, c.berth)
}

func (c *Cluster) welcomeText(took time.Duration) string {
	berth := "berth"
	if filepath.Base(os.Args[0]) != os.Args[0] {
		berth = print.ShellWord(os.Args[0])
	}
	if c.DataDir != connect.DefaultDataDir {
		berth = connect.EnvDataDir + "=" + print.ShellWord(c.DataDir) + " " + berth
	}
	try := []string{"kubectl get nodes -L topology.kubernetes.io/zone",
		"kubectl create deployment web --image=nginx --replicas=3", "nodes fail --node node-1 --for 2m"}
	if c.Nodes == 0 && c.Own.private != nil { // the private containerd cannot pull images
		try = []string{"kubectl get nodes,pods -A", "kubectl run hello --image=busybox:1 -- sleep 1000", "kubectl exec hello -- hostname"}
	} else if c.Nodes == 0 { // no simulated node can fail
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

Ctrl-C stops it; the next berth up continues from there.
`, c.Version, DescribeNodes(c.Nodes, c.Zones), took.Seconds(),
		c.kubeconfig, filepath.Join(filepath.Dir(c.kubeconfig), "*.log"), c.Own.welcomeLine(c)+c.pageLine(), berth, try[0], try[1], try[2])
}

// DescribeNodes describes the number of simulated nodes.
func DescribeNodes(nodes, zones int) string {
	if nodes == 0 {
		return "no simulated nodes"
	}
	s := answer.Count(nodes, "simulated node")
	if zones > 0 {
		s += " in " + answer.Count(min(zones, nodes), "zone")
	}
	return s
}

// defaultServiceRange is the control plane's default.
const defaultServiceRange = "10.96.0.0/12"

// serviceRangeFile records a cluster's service range if it is not the default, because the range
// cannot change after Services have addresses.
const serviceRangeFile = "service-range"

// serviceRange returns the service range of the cluster in the data directory.
func serviceRange(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, serviceRangeFile))
	if err != nil {
		return defaultServiceRange
	}
	return strings.TrimSpace(string(text))
}

// serviceRelay lets pods reach the API server at the address of the Service kubernetes, although
// the API server listens on loopback only, and the node runs without kube-proxy.
type serviceRelay struct {
	listener net.Listener
	prefix   netip.Prefix
	device   string
}

// freeRanges returns the ranges for new clusters, above the default one and below the pods'
// networks. The first range depends on the folder, so that a restarted cluster usually finds its
// range free, regardless of clusters started meanwhile.
func freeRanges(dir string) (ranges []string) {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dir)) // never fails
	for i := range uint32(16) {
		ranges = append(ranges, fmt.Sprintf("10.%d.0.0/16", 112+(hash.Sum32()+i)%16))
	}
	return ranges
}

// openRelay adds the service address to the network device and listens on it. Two clusters on one
// machine need separate service ranges: a new one takes the first range with a free address.
func openRelay(dir, device, kubeconfig string) (*serviceRelay, error) {
	ranges := []string{serviceRange(dir)}
	if isNew := !exists(filepath.Join(dir, "pki")) && ranges[0] == defaultServiceRange; isNew {
		ranges = freeRanges(dir)
	}

	for _, text := range ranges {
		d, err := listenAt(text, device)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		go relay.Serve(d.listener, func() (string, error) { return apiServer(kubeconfig) })
		if text == defaultServiceRange {
			return d, nil
		}
		if err := durable.Replace(filepath.Join(dir, serviceRangeFile), []byte(text+"\n"), 0o600); err != nil {
			return nil, errors.Join(err, d.close())
		}
		return d, nil
	}

	return nil, fmt.Errorf("%s is in use: another cluster on this machine has this service range: stop it, or start with another "+
		"--data-dir or with --fresh", ranges[0])
}

func listenAt(serviceRange, device string) (*serviceRelay, error) {
	services, err := netip.ParsePrefix(serviceRange)
	if err != nil {
		return nil, fmt.Errorf("service range: %w", err)
	}
	first := services.Masked().Addr().Next()
	d := &serviceRelay{prefix: netip.PrefixFrom(first, first.BitLen()), device: device}
	if err := d.changeAddress("replace"); err != nil {
		return nil, err
	}
	if d.listener, err = net.Listen("tcp", d.address()); err != nil {
		return nil, errors.Join(err, d.changeAddress("del"))
	}
	return d, nil
}

// address returns the value of pods' KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func (d *serviceRelay) address() string { return netip.AddrPortFrom(d.prefix.Addr(), 443).String() }

func (d *serviceRelay) changeAddress(verb string) error {
	if out, err := exec.Command("ip", "addr", verb, d.prefix.String(), "dev", d.device).CombinedOutput(); err != nil {
		return fmt.Errorf("ip addr %s %s dev %s: %w: %s", verb, d.prefix, d.device, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (d *serviceRelay) close() error { return errors.Join(d.listener.Close(), d.changeAddress("del")) }

// kubeletPort returns the usual port or, if another kubelet has it, a free one.
func kubeletPort(address string) int {
	for _, port := range []string{"10250", "0"} {
		l, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	return 10250 // the kubelet reports the error
}

// apiServer returns the API server's current address: the port may change on a restart.
func apiServer(kubeconfig string) (string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	address, err := url.Parse(config.Host)
	if err != nil {
		return "", err
	}
	return address.Host, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
