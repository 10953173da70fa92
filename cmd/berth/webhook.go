// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/admission/webhook"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/usage"
)

func newWebhookCommand() *cobra.Command {
	var to connect.Flags
	var print bool
	var image string
	options := webhook.DefaultOptions()
	if in, err := os.ReadFile(lead.NamespaceFile); err == nil {
		options.Namespace = strings.TrimSpace(string(in))
	}

	cmd := &cobra.Command{
		Use:     "webhook",
		GroupID: groupParts,
		Short:   "Admission rules for an existing cluster",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return usagef("%w", err)
			}
			if print {
				return usage.Of(options.WriteManifests(cmd.OutOrStdout(), image))
			}
			return runWebhook(cmd, &to, options)
		},
	}
	to.AddFlags(cmd.Flags())
	options.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&print, "print-manifests", false,
		"print the manifests that run the webhook in a cluster, for kubectl apply, and exit")
	cmd.Flags().StringVar(&image, "image", "", "image in the manifests of --print-manifests")
	addVerbosity(cmd)
	return cmd
}

func runWebhook(cmd *cobra.Command, to *connect.Flags, options webhook.Options) error {
	cfg, err := to.Config("webhook")
	if err != nil {
		return err
	}

	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	w, err := webhook.New(cfg, options)
	if err != nil {
		return err
	}

	if address := w.HealthAddress(); address != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "health and metrics on http://%s\n", address)
	}
	go func() {
		select {
		case <-w.Ready():
			fmt.Fprintf(cmd.OutOrStdout(), "ready https://%s\n", w.Address())
		case <-ctx.Done():
		}
	}()

	return w.Run(ctx)
}
