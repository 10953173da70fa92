// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/ui"
)

// uiPort is the dashboard's default port, fixed so that bookmarks and open browser tabs find it
// again.
const uiPort = 8422

// pageFlags holds the flags of berth ui.
type pageFlags struct {
	cluster                      connect.Flags
	address                      string
	port                         int
	tokenFile, config, scheduler string
	// schedulerLeases are trusted to announce the scheduler's configuration; see lead.Trusted.
	schedulerLeases []string
	recording       string
	options         ui.Options
}

func newUICommand() *cobra.Command {
	p := pageFlags{}
	cmd := &cobra.Command{
		Use:     "ui",
		GroupID: groupAsk,
		Short:   "The dashboard: the cluster live in a browser",
		Args:    parse.None,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.runUI(cmd) },
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
	flags.StringVar(&p.options.Journal, "journal", "",
		"folder of the journals of berth scheduler --journal, from which the history of the last 24 hours is restored at the start")
	p.addSchedulerFlags(flags)
	p.cluster.AddKubectlFlags(flags)
	return cmd
}

// addSchedulerFlags adds the flags that select the scheduler's configuration.
func (p *pageFlags) addSchedulerFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.config, "config", "",
		"the scheduler's configuration file, for explanations and forecasts (default: that of the scheduler that runs)")
	flags.StringVar(&p.scheduler, "scheduler-url", "",
		"endpoints of the scheduler, such as http://127.0.0.1:10251, to ask for its configuration and decisions (default: those of "+
			"berth up)")
	flags.StringSliceVar(&p.schedulerLeases, "scheduler-lease", nil,
		"Lease of the scheduler, as NAMESPACE/NAME or NAMESPACE, whose configuration is trusted, besides those in kube-system, "+
			deploy.Namespace+" and this pod's namespace (repeatable)")
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
		if cfg, err = p.cluster.Config("berth-ui"); err != nil {
			return err
		}
		p.options.Decided = p.askedScheduler().Decision
	}

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

func (p *pageFlags) askedScheduler() *query.Scheduler {
	return &query.Scheduler{URL: p.scheduler, Cluster: &p.cluster, UserAgent: "berth-ui"}
}

// runningSource returns a function that reports the configuration for forecasts: the configuration
// in the named file, or else the configuration in use by the running schedulers.
func (p *pageFlags) runningSource(cmd *cobra.Command) (func(context.Context, []*coordinationv1.Lease,
	time.Time) (*config.Running, error), error) {
	if p.config != "" {
		c, err := query.LoadConfiguration(p.config, cmd.ErrOrStderr())
		if err != nil {
			return nil, err
		}
		return func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
			stopped := config.StoppedOf(nil, leases, lead.Trusted(p.schedulerLeases...), at)
			return &config.Running{Profiles: c.Profiles, Stopped: stopped}, nil
		}, nil
	}

	address := p.askedScheduler()
	return func(ctx context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		var inUse *config.InUse
		if p.recording == "" {
			inUse, _ = address.InUse(ctx) // without a response, the forecast mentions the assumed configuration
		}
		return config.RunningOf(inUse, leases, lead.Trusted(p.schedulerLeases...), at)
	}, nil
}

func (p *pageFlags) checkFlags() error {
	switch {
	case net.ParseIP(p.address) == nil:
		return usagef("--address %q: must be an IP address", p.address)
	case p.port < 0 || p.port > 65535:
		return usagef("--port %d: must be between 0 and 65535", p.port)
	case (p.options.CertFile == "") != (p.options.KeyFile == ""):
		return usagef("--tls-cert-file and --tls-private-key-file: must be given together")
	case p.tokenFile == "":
		return nil
	}

	token, err := ui.ReadToken(p.tokenFile)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	p.options.Token = token
	return nil
}

// parseOnPage parses operations like berth what-if. Flags that select a cluster or an output format
// are unavailable in the dashboard: its cluster is fixed, and it must not read files on request.
func parseOnPage(args []string, namespace string) ([]whatif.Step, error) {
	f := forecast{}
	said, steps, err := f.parse(args, "berth what-if")
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return nil, usagef("for help see berth what-if --help")
	case err != nil:
		return nil, err
	case len(steps) == 0:
		return nil, usagef("no operation specified, such as drain node/NAME")
	}

	said.General.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "namespace" {
			err = usagef("on the dashboard, only operations and --namespace can be given")
		}
	})
	switch {
	case err != nil:
		return nil, err
	case slices.ContainsFunc(said.Catalog, func(name string) bool { return name != "-" }):
		return nil, usagef("on the dashboard, provision --catalog - is the entered catalog: no file is read")
	case f.namespace != "" && f.namespace != namespace && slices.ContainsFunc(steps, func(s whatif.Step) bool { return s.Deploy != nil }):
		return nil, usagef("apply -f - is in the namespace of the question: set it there, not by --namespace")
	}
	for i := range steps {
		steps[i].Provision.Within(30 * time.Second) // the plan is proved afterwards
	}
	said.Within(cmp.Or(f.namespace, namespace))
	return steps, nil
}
