package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/config"
	"github.com/berth-k8s/berth/scheduler/live"
)

// schedulerFlags are the flags of berth scheduler.
type schedulerFlags struct {
	file               string
	binders            int
	qps                float32
	compareTolerations bool
}

func newScheduler() *cobra.Command {
	var to connection
	var f schedulerFlags
	cmd := &cobra.Command{
		Use:     "scheduler",
		GroupID: groupParts,
		Short:   "The scheduler, in place of kube-scheduler",
		Long: `Decide where waiting pods run, and bind them: every pod gets the best of all
nodes. A pod that fits nowhere says why (event FailedScheduling, condition
PodScheduled), makes room for itself if its priority allows it, and is tried
again when something happens that can help.

Configuration files are kube-scheduler's: KubeSchedulerConfiguration v1. It runs
as the only replica; leader election is not built in yet.`,
		Example: `  berth scheduler --kubeconfig .berth/kubeconfig
  berth scheduler --config scheduler.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, &to) },
	}
	to.addFlags(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&f.file, "config", "", "a KubeSchedulerConfiguration file (default: upstream's defaults)")
	flags.IntVar(&f.binders, "binders", 64, "bindings that may be under way at once")
	flags.Float32Var(&f.qps, "kube-api-qps", 0, "requests per second to the API server; 0 is as many as it takes")
	flags.BoolVar(&f.compareTolerations, "compare-tolerations", false,
		"let tolerations with the operators Gt and Lt count (the API's feature gate TaintTolerationComparisonOperators)")
	return cmd
}

func (f *schedulerFlags) run(cmd *cobra.Command, to *connection) error {
	if f.binders < 1 {
		return usagef("--binders %d: must be 1 or more", f.binders)
	}
	options := config.Options{CompareTolerations: f.compareTolerations}
	read, err := config.Default(options)
	if f.file != "" {
		read, err = config.Load(f.file, options)
	}
	if err != nil {
		return err
	}
	for _, note := range read.Notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", f.file, note)
	}
	client, events, err := f.clients(to)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	out := cmd.OutOrStdout()
	s := live.New(client, events, live.Options{
		Profiles: read.Profiles,
		Ready:    func() { fmt.Fprintln(out, "ready") },
	})
	return s.Run(ctx, f.binders)
}

// clients are the scheduler's, and one for events, which are not to be in its way.
func (f *schedulerFlags) clients(to *connection) (client, events kubernetes.Interface, err error) {
	base, err := to.config("scheduler")
	if err != nil {
		return nil, nil, err
	}
	base.ContentType = runtime.ContentTypeProtobuf
	base.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	base.QPS, base.Burst = -1, 0
	if f.qps > 0 {
		base.QPS, base.Burst = f.qps, int(2*f.qps)
	}
	if client, err = kubernetes.NewForConfig(base); err != nil {
		return nil, nil, err
	}
	if events, err = kubernetes.NewForConfig(rest.CopyConfig(base)); err != nil {
		return nil, nil, err
	}
	return client, events, nil
}
