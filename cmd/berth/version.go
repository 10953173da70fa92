// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
)

// version is set by releases with -ldflags "-X main.version=v1.2.3"; otherwise the module's build
// information is used.
var version string

type versionInfo struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	Modified   bool   `json:"modified,omitempty"`
	Kubernetes string `json:"kubernetes"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		GroupID: groupOthers,
		Short:   "Print Berth's version and the Kubernetes version it follows",
		Args:    parse.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" && output != "yaml" {
				return usagef("--output %q: must be json or yaml", output)
			}
			v := currentVersion()
			return answer.Write(cmd.OutOrStdout(), output, v, v.print)
		},
	}

	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml; default: plain text")
	return cmd
}

func (v versionInfo) print(page *answer.Page) {
	commit := ""
	if v.Commit != "" {
		commit = " (" + v.Commit[:min(12, len(v.Commit))] + ")"
	}
	page.Line("Berth %s%s\nKubernetes %s\n%s %s", v.Version, commit, v.Kubernetes, v.Go, v.Platform)
}

func currentVersion() versionInfo {
	v := versionInfo{
		APIVersion: "berth.dev/v1alpha1",
		Kind:       "Version",
		Version:    version,
		Kubernetes: "unknown",
		Go:         runtime.Version(),
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}

	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}

	v.Version = cmp.Or(v.Version, info.Main.Version)
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}

	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}

	for _, m := range info.Deps {
		if m.Path == "k8s.io/client-go" {
			v.Kubernetes = kubernetesOf(m.Version)
		}
	}
	return v
}

// kubernetesOf converts the version of a Kubernetes library to that of its Kubernetes release:
// v0.36.3 belongs to v1.36.3.
func kubernetesOf(library string) string {
	if rest, ok := strings.CutPrefix(library, "v0."); ok {
		return "v1." + rest
	}
	return library
}
