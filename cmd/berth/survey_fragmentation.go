package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/cli/ask"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

func newSurveyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "survey",
		GroupID: groupAsk,
		Short:   "What is free and of no use: fragmentation",
		Args:    parse.Subcommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFragmentationCommand())
	return cmd
}

func newFragmentationCommand() *cobra.Command {
	q := ask.Question{UserAgent: "berth-survey"}
	by, args := survey.Pools[0], plugins.FragmentationArgs{}
	resource := ""
	cmd := &cobra.Command{
		Use:   "fragmentation",
		Short: "What of the free devices the pending pods and those that come can use",
		Long: `Show how much of the free devices (GPUs, ...) is of use, by pool of nodes: what the
next pod can use on average over the pods that come, what is expected to be left
over in the end, and how many more pods of each kind would fit. What comes is what
the plugin Fragmentation of the scheduler's configuration knows; without it, it is
learnt from the pods that run. In JSON, tasks is what comes as arguments for the
plugin. Read-only: get and list, never secrets.`,
		Example: `  berth survey fragmentation
  berth survey fragmentation --by node -o wide
  berth survey fragmentation --resource example.com/gpu-milli --unit 1000
  berth survey fragmentation -f cluster/ -o json`,
		Args: parse.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(survey.Pools, by) {
				return usagef("--by %q: must be one of %s", by, strings.Join(survey.Pools, ", "))
			}
			args.Resource = v1.ResourceName(resource)
			given, err := plugins.NewDeviceValuer(&args)
			if err != nil {
				return usagef("--resource, --unit: %w", err)
			}
			named := resource != "" || cmd.Flags().Changed("unit")
			return q.Ask(cmd, func(w *simulate.World, source simulate.Source) (*ask.Answer, error) {
				q.Meter.Begin(cmd.ErrOrStderr(), "asking about the cluster")
				f := given
				if profile := w.Profile(v1.DefaultSchedulerName); profile != nil && !named {
					f = profile.DeviceValuer()
				}
				if f == nil {
					f = given
				}
				if f == given {
					source.Assumed = "" // requests alone decide
				}
				s := survey.FragmentationOf(w, f, by, source)
				return &ask.Answer{Document: s, Certain: named}, nil
			})
		},
	}
	flags := cmd.Flags()
	q.AddFlags(flags)
	q.AddWatchFlags(flags)
	flags.StringVar(&by, "by", by, strings.Join(survey.Pools, ", ")+
		": what nodes are grouped by; a pool is named by its provider's label, else by its shape")
	flags.StringVar(&resource, "resource", "", "the extended resource that devices provide (default: the plugin's, or nvidia.com/gpu)")
	flags.Int64Var(&args.Unit, "unit", 0, "how much of the resource one device has (default: the plugin's, or 1)")
	ask.CompleteChoices(cmd, "by", survey.Pools...)
	return cmd
}
