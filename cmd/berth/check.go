// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/inspect/check"
	"github.com/berth-k8s/berth/internal/inspect/check/clusterfacts"
	"github.com/berth-k8s/berth/internal/kube/connect"
)

// checking holds the flags of berth check.
type checking struct {
	cluster              connect.Flags
	output, failOn, part string
}

func newCheckCommand() *cobra.Command {
	c := checking{}
	cmd := &cobra.Command{
		Use:     "check",
		GroupID: groupAsk,
		Short:   "Check that Berth fits this cluster, and that its components work",
		Args:    parse.None,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.runCheck(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&c.output, "output", "o", "", print.FormatsUsage(answer.Formats))
	flags.StringVar(&c.failOn, "fail-on", "", "exit with code 3 on findings of this level or worse: problem or warning")
	flags.StringVar(&c.part, "for", "", "check only your permissions for a component: scheduler, controller, webhook or view")
	c.cluster.AddKubectlFlags(flags)
	return cmd
}

func (c *checking) runCheck(cmd *cobra.Command) error {
	if err := print.CheckFormat(c.output, answer.Formats); err != nil {
		return err
	}
	if c.failOn != "" && c.failOn != string(check.Problem) && c.failOn != string(check.Warning) {
		return usagef("--fail-on %q: must be problem or warning", c.failOn)
	}
	if c.part != "" && !slices.Contains(deploy.Parts(), deploy.Part(c.part)) {
		return usagef("--for %q: must be one of %s", c.part, strings.Trim(strings.ReplaceAll(fmt.Sprint(deploy.Parts()), " ", ", "), "[]"))
	}

	client, err := query.NewClient(&c.cluster, "berth-check", query.LimitTime, query.RaiseRateLimit)
	if err != nil {
		return err
	}

	var meter print.Meter
	meter.Begin(cmd.ErrOrStderr(), "checking the cluster")
	said, err := c.askServer(cmd, client)
	meter.End()
	if err != nil {
		return connect.WithRemedy(err)
	}
	if err := said.Write(cmd.OutOrStdout(), c.output); err != nil {
		return err
	}

	if c.failOn == "" {
		return nil
	}
	return print.Held([]string{c.failOn}, func(level string) bool { return said.Held(check.Level(level)) > 0 })
}

func (c *checking) askServer(cmd *cobra.Command, client kubernetes.Interface) (*check.Answer, error) {
	if c.part == "" {
		facts, err := clusterfacts.Read(cmd.Context(), client)
		if err != nil {
			return nil, err
		}
		return check.NewAnswer(facts.Version, check.Judge(facts)), nil
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, err
	}

	denied, err := clusterfacts.Denied(cmd.Context(), clusterfacts.OwnAccess(client), deploy.Part(c.part), version.GitVersion, "")
	if err == nil && len(denied) > 0 { // the scheduler may be meant to use kube-scheduler's Lease
		var other []string
		if other, err = clusterfacts.Denied(cmd.Context(), clusterfacts.OwnAccess(client), deploy.Part(c.part),
			version.GitVersion, check.UpstreamLease); len(other) < len(denied) {
			denied = other
		}
	}
	if err != nil {
		return nil, err
	}
	return check.NewAnswer(version.GitVersion, check.RightsOf(c.part, denied)), nil
}
