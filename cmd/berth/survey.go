// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/survey"
)

// scope holds the flags of a query about some of the pods.
type scope struct {
	query.Question
	namespace     string
	allNamespaces bool
	selector      string
}

func (s *scope) inNamespace() string { return s.NamespaceOr(s.namespace) }

func (s *scope) parseScope() (of survey.Scope, err error) {
	if !s.allNamespaces {
		of.Namespace = s.inNamespace()
	}
	if of.Selector, err = labels.Parse(s.selector); err != nil {
		return of, usagef("--selector %q: %w", s.selector, err)
	}
	return of, nil
}

// inquire completes a command that lists pods in some condition. With --fail-on, a non-empty list
// has a special exit code.
func inquire(cmd *cobra.Command, condition string,
	list func(*simulate.World, survey.Scope, simulate.Source) (answer *query.Answer, any bool, err error)) *cobra.Command {
	s := scope{Question: query.Question{UserAgent: "berth-" + cmd.Name()}}
	failOn := ""
	cmd.GroupID, cmd.Args = groupAsk, parse.None
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if failOn != "" && failOn != condition {
			return usagef("--fail-on %q: must be %s", failOn, condition)
		}
		of, err := s.parseScope()
		if err != nil {
			return err
		}
		err = s.Ask(cmd, func(w *simulate.World, source simulate.Source) (*query.Answer, error) {
			s.Meter.Begin(cmd.ErrOrStderr(), "asking about the cluster")
			said, any, err := list(w, of, source)
			if err == nil && failOn != "" {
				said.Held = print.Held([]string{failOn}, func(string) bool { return any })
			}
			return said, err
		})
		// A namespace's admin may read its pods, but not the nodes.
		if condition == "pending" && of.Namespace != "" && apierrors.IsForbidden(err) {
			if lines := s.StatusesOf(cmd.Context(), of.Namespace); len(lines) > 0 {
				err = fmt.Errorf("%w. Without them: %s", err, strings.Join(lines, "; "))
			}
		}
		return err
	}

	flags := cmd.Flags()
	s.AddFlags(flags)
	s.AddWatchFlags(flags)
	flags.StringVarP(&s.namespace, "namespace", "n", "", "the namespace to ask about (default: the context's, or default)")
	flags.BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "ask about all namespaces")
	flags.StringVarP(&s.selector, "selector", "l", "", "only pods with these labels")
	flags.StringVar(&failOn, "fail-on", "", "exit with code 3 if there is any: "+condition)
	query.CompleteChoices(cmd, "fail-on", condition)
	s.CompleteFlags(cmd, &s.namespace)
	return cmd
}

func newPendingCommand() *cobra.Command {
	return inquire(&cobra.Command{
		Use:   "pending",
		Short: "Which workloads are pending, since when, why, and what would help",
	}, "pending", func(w *simulate.World, of survey.Scope, source simulate.Source) (*query.Answer, bool, error) {
		p, err := survey.PendingOf(w, of, source)
		if err != nil {
			return nil, false, err
		}
		return &query.Answer{Document: p}, p.Pods+p.Missing > 0, nil
	})
}

func newEvictionsCommand() *cobra.Command {
	return inquire(&cobra.Command{
		Use:   "evictions",
		Short: "Which pods have to leave their nodes, when, and because of which taint",
	}, "evicted", func(w *simulate.World, of survey.Scope, source simulate.Source) (*query.Answer, bool, error) {
		source.Assumed = "" // the result depends on taints only
		e := survey.EvictionsOf(w, of, source)
		return &query.Answer{Document: e, Certain: true}, len(e.Evictions) > 0, nil
	})
}

func newCapacityCommand() *cobra.Command {
	q := scope{Question: query.Question{UserAgent: "berth-capacity"}}
	by, like := "node", ""
	cmd := &cobra.Command{
		Use:     "capacity",
		GroupID: groupAsk,
		Short:   "What still fits where: by node, zone or shape of node",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(survey.Ways, by) {
				return usagef("--by %q: must be one of %s", by, strings.Join(survey.Ways, ", "))
			}
			return q.Ask(cmd, func(w *simulate.World, source simulate.Source) (*query.Answer, error) {
				q.Meter.Begin(cmd.ErrOrStderr(), "asking about the cluster")
				if like == "" {
					source.Assumed = "" // requests alone decide
				}
				c := survey.CapacityOf(w, by, source)
				if like != "" {
					done, err := w.Do(&simulate.Operation{AddPods: &simulate.AddPods{Max: true, Like: like,
						Namespace: q.inNamespace()}})
					if err != nil {
						return nil, err
					}
					c.Fill = done.Fill
				}
				return &query.Answer{Document: c, Certain: like == ""}, nil
			})
		},
	}

	flags := cmd.Flags()
	q.AddFlags(flags)
	q.AddWatchFlags(flags)
	flags.StringVar(&by, "by", by, strings.Join(survey.Ways, ", ")+": what nodes are grouped by")
	flags.StringVar(&like, "like", "", "also count how many more pods like this one fit: pod/NAME, deployment/NAME, ...")
	flags.StringVarP(&q.namespace, "namespace", "n", "", "of what --like names (default: the context's, or default)")
	q.CompleteFlags(cmd, &q.namespace)
	query.CompleteChoices(cmd, "by", survey.Ways...)
	return cmd
}

func newFragmentationCommand() *cobra.Command {
	q := query.Question{UserAgent: "berth-survey"}
	by, args := survey.Pools[0], plugins.FragmentationArgs{}
	resource := ""
	cmd := &cobra.Command{
		Use:   "fragmentation",
		Short: "How much of the free devices the pending and expected pods can use",
		Args:  parse.None,
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
			return q.Ask(cmd, func(w *simulate.World, source simulate.Source) (*query.Answer, error) {
				q.Meter.Begin(cmd.ErrOrStderr(), "asking about the cluster")
				f := given
				if profile := w.Profile(v1.DefaultSchedulerName); profile != nil && !named {
					f = cmp.Or(profile.DeviceValuer(), given)
				}
				if f == given {
					source.Assumed = "" // requests alone decide
				}
				s := survey.FragmentationOf(w, f, by, source)
				return &query.Answer{Document: s, Certain: named}, nil
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
	query.CompleteChoices(cmd, "by", survey.Pools...)
	return cmd
}
