package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/check"
	checklive "github.com/berth-k8s/berth/internal/inspect/check/live"
)

// checking is what the flags of berth check say.
type checking struct {
	connection connection
	output     string
	failOn     string
	part       string
}

func newCheckCommand() *cobra.Command {
	c := checking{}
	cmd := &cobra.Command{
		Use:     "check",
		GroupID: groupAsk,
		Short:   "Whether Berth fits this cluster, and whether what is installed can work",
		Long: `Look at a cluster and say, a line each, what matters to Berth: versions, rights,
the flags of kube-scheduler and kube-controller-manager where they run as pods,
schedulers that pods ask for, webhooks that stand in the way, budgets that block,
priorities, and what to do about it.

Nothing is changed. With --for it is asked instead whether whoever runs the
command has the rights of a part of Berth: with the kubeconfig that the part is
to run with, say.`,
		Example: `  berth check
  berth check --fail-on problem
  berth check --for scheduler --kubeconfig /etc/kubernetes/scheduler.conf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&c.output, "output", "o", "", "json or yaml; by default lines for people")
	flags.StringVar(&c.failOn, "fail-on", "", "end with exit code 3 if there is a problem, or with warning a warning or a problem")
	flags.StringVar(&c.part, "for", "", "ask only whether the caller has the rights of scheduler, controller, webhook or view")
	c.connection.addFlags(flags)
	return cmd
}

func (c *checking) run(cmd *cobra.Command) error {
	if err := oneOf(c.output, answer.Formats...); err != nil {
		return err
	}
	if c.failOn != "" && c.failOn != string(check.Problem) && c.failOn != string(check.Warning) {
		return usagef("--fail-on %q: must be problem or warning", c.failOn)
	}
	if c.part != "" && !slices.Contains(deploy.Parts(), deploy.Part(c.part)) {
		return usagef("--for %q: must be one of %v", c.part, deploy.Parts())
	}
	cfg, err := c.connection.config("berth-check")
	if err != nil {
		return err
	}
	cfg = reachable(cfg)
	cfg.QPS, cfg.Burst = 50, 100
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	said, err := c.ask(cmd, client)
	if err != nil {
		return err
	}
	if err := said.Write(cmd.OutOrStdout(), c.output); err != nil {
		return err
	}
	if c.failOn != "" && said.Held(check.Level(c.failOn)) > 0 {
		return heldError{fmt.Errorf("--fail-on: %s came true", c.failOn)}
	}
	return nil
}

func (c *checking) ask(cmd *cobra.Command, client kubernetes.Interface) (*check.Answer, error) {
	if c.part == "" {
		facts, err := checklive.Read(cmd.Context(), client)
		if err != nil {
			return nil, err
		}
		return check.NewAnswer(facts.Version, check.Judge(facts)), nil
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, err
	}
	denied, err := checklive.Denied(cmd.Context(), checklive.Mine(client), deploy.Part(c.part), version.GitVersion, "")
	if err == nil && len(denied) > 0 { // it may be meant to elect by kube-scheduler's Lease
		var other []string
		if other, err = checklive.Denied(cmd.Context(), checklive.Mine(client), deploy.Part(c.part), version.GitVersion, check.UpstreamLease); len(other) < len(denied) {
			denied = other
		}
	}
	if err != nil {
		return nil, err
	}
	return check.NewAnswer(version.GitVersion, check.RightsOf(c.part, denied)), nil
}
