package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/ui"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// uiPort is the dashboard's default port, so that a bookmark, and a browser tab that is open, find
// it again.
const uiPort = 8422

// pageFlags has the flags of berth ui.
type pageFlags struct {
	to        connection
	address   string
	port      int
	tokenFile string
	config    string
	scheduler string
	recording string
	options   ui.Options
}

func newUICommand() *cobra.Command {
	p := pageFlags{}
	cmd := &cobra.Command{
		Use:     "ui",
		GroupID: groupAsk,
		Short:   "The dashboard: the cluster live in a browser",
		Long: `Serve the dashboard, which shows the cluster live: nodes as a map by requests,
taints or zone, pending pods with the reasons, evictions with a countdown, events
as they happen, why a pod is where it is, and forecasts.

The cluster is only read (get, list and watch, never secrets). The dashboard asks
for a token, which is part of the URL that is printed.`,
		Example: `  berth ui
  berth ui --port 9000
  berth ui -f recording
  berth ui --address 0.0.0.0 --tls-cert-file ui.crt --tls-private-key-file ui.key --allowed-host ui.example.com`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runUI(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&p.address, "address", "127.0.0.1", "IP address to listen on")
	flags.IntVar(&p.port, "port", uiPort,
		"port to listen on; 0 picks a free one. If the flag is not given and the port is in use, a free one is picked")
	flags.StringVar(&p.tokenFile, "token-file", "",
		"file with the token for the dashboard, 16 characters or more (default: one is generated)")
	flags.StringSliceVar(&p.options.Names, "allowed-host", nil, "host name that the dashboard answers to, besides localhost (repeatable)")
	flags.StringVar(&p.options.CertFile, "tls-cert-file", "", "certificate for HTTPS (default: plain HTTP)")
	flags.StringVar(&p.options.KeyFile, "tls-private-key-file", "", "key of --tls-cert-file")
	flags.StringVarP(&p.recording, "filename", "f", "",
		"folder of a recording of berth record, shown instead of a live cluster, with a slider for the time")
	flags.StringVar(&p.config, "config", "",
		"the scheduler's configuration file, for explanations and forecasts (default: that of the scheduler that runs)")
	flags.StringVar(&p.scheduler, "scheduler-url", "",
		"endpoints of the scheduler, as http://127.0.0.1:10251, to ask for its configuration and decisions (default: those of berth up)")
	p.to.addFlags(flags)
	p.to.to.AddKubectlFlags(flags)
	return cmd
}

func (p *pageFlags) runUI(cmd *cobra.Command) error {
	if err := p.checkFlags(); err != nil {
		return err
	}
	var err error
	if p.options.Running, err = p.runningSource(cmd); err != nil {
		return err
	}
	var cfg *rest.Config // a recording needs no cluster
	if p.recording == "" {
		if cfg, err = p.to.restConfig("berth-ui"); err != nil {
			return err
		}
	}
	p.options.Decided = p.askedScheduler().getDecision
	p.options.Parse, p.options.Version, p.options.Recording = parseOnPage, currentVersion().Version, p.recording
	p.options.Address = net.JoinHostPort(p.address, strconv.Itoa(p.port))
	server, err := ui.Listen(cfg, p.options)
	if err != nil && !cmd.Flags().Changed("port") {
		p.options.Address = net.JoinHostPort(p.address, "0")
		server, err = ui.Listen(cfg, p.options)
	}
	if err != nil {
		return err
	}
	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	fmt.Fprintf(cmd.OutOrStdout(), "ready %s\n", server.URL())
	return server.Run(ctx)
}

func (p *pageFlags) askedScheduler() *schedulerAddress {
	return &schedulerAddress{url: p.scheduler, connection: &p.to, userAgent: "berth-ui"}
}

// runningSource returns the function that says by which configuration questions are answered: the
// file that is named, or else what the schedulers that run decide by.
func (p *pageFlags) runningSource(cmd *cobra.Command) (func(context.Context, []*coordinationv1.Lease,
	time.Time) (*config.Running, error), error) {
	if p.config != "" {
		c, err := loadConfiguration(p.config, cmd.ErrOrStderr())
		if err != nil {
			return nil, err
		}
		return func(context.Context, []*coordinationv1.Lease, time.Time) (*config.Running, error) {
			return &config.Running{Profiles: c.Profiles}, nil
		}, nil
	}
	address := p.askedScheduler()
	return func(ctx context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		var told *config.InUse
		if p.recording == "" {
			told, _ = address.inUse(ctx) // if nobody answers, the answer says what was assumed
		}
		return config.RunningOf(told, leases, at)
	}, nil
}

func (p *pageFlags) checkFlags() error {
	if net.ParseIP(p.address) == nil {
		return usagef("--address %q: must be an IP address", p.address)
	}
	if p.port < 0 || p.port > 65535 {
		return usagef("--port %d: must be between 0 and 65535", p.port)
	}
	if (p.options.CertFile == "") != (p.options.KeyFile == "") {
		return usagef("--tls-cert-file and --tls-private-key-file: must be given together")
	}

	if p.tokenFile == "" {
		return nil
	}
	token, err := readPageToken(p.tokenFile)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}

	p.options.Token = token
	return nil
}

// errNoToken says what a token file must hold.
var errNoToken = errors.New("must hold one word of 16 characters or more")

func readPageToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || strings.ContainsAny(token, " \t\r\n") {
		return "", usagef("%s: %w", file, errNoToken)
	}
	return token, nil
}

// pageTokenFile is in the data directory. It outlives berth up, so that a tab that is open finds
// the dashboard again.
const pageTokenFile = "ui.token"

// keepPageToken makes sure that the file holds a token.
func keepPageToken(file string) error {
	_, err := readPageToken(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoToken) {
		return err
	}
	return os.WriteFile(file, []byte(ui.NewToken()+"\n"), 0o600)
}

// parseOnPage parses operations as berth what-if does. Flags that say where to read a cluster from,
// or how to write an answer, are not available in the dashboard: it has its cluster, and must not
// be made to read files.
func parseOnPage(args []string, namespace string) ([]whatif.Step, error) {
	f := forecast{path: "berth what-if"}
	steps, err := f.parseSteps(args)
	switch {
	case errors.Is(err, pflag.ErrHelp), f.help:
		return nil, usagef("for help see berth what-if --help")
	case err != nil:
		return nil, err
	case len(steps) == 0:
		return nil, usagef("no operation is named: such as drain node/NAME")
	}

	var meant forecast
	meant.addFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if len(f.files) > 0 || f.recursive || f.strict || len(f.gates) > 0 || f.at != "" || f.config != "" ||
		f.output != "" || f.connection != meant.connection || f.seed != meant.seed || f.time != 0 || len(f.failOn) > 0 {
		return nil, usagef("on the dashboard, only operations and --namespace can be given")
	}

	if slices.ContainsFunc(f.catalog, func(name string) bool { return name != "-" }) {
		return nil, usagef("on the dashboard, provision --catalog - is the catalog that was entered: no file is read")
	}
	if slices.ContainsFunc(steps, func(s whatif.Step) bool { return s.Replace }) {
		return nil, usagef("provision --replace takes long in large clusters: ask on the command line")
	}

	if f.namespace != "" {
		namespace = f.namespace
	}
	for i := range steps {
		setNamespace(&steps[i], namespace)
	}
	return steps, nil
}

// Values of the dashboard's port in berth up that are not ports.
const (
	noPage      = -1
	anyPagePort = -2 // the usual one, or a free one
)

// pagePart is the dashboard as a component of berth up. When restarted it uses the same port again,
// so that an open browser tab keeps working.
func (c *cluster) pagePart() supervisor.Part {
	return supervisor.Part{
		Name: "ui",

		Argv: func() []string {
			argv := []string{c.berth, "ui", "--kubeconfig", c.kubeconfigOf("ui"), "--token-file", c.pageToken()}
			switch address, err := url.Parse(c.page); {
			case c.page != "" && err == nil:
				argv = append(argv, "--port", address.Port())
			case c.uiPort >= 0:
				argv = append(argv, "--port", strconv.Itoa(c.uiPort))
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

func (c *cluster) pageToken() string {
	return filepath.Join(filepath.Dir(c.kubeconfig), pageTokenFile)
}

// pageLine prints the dashboard's address.
func (c *cluster) pageLine() string {
	if c.page == "" {
		return ""
	}
	return "  dashboard   " + c.page + "\n"
}
