// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

const kubernetesModule = "k8s.io/kubernetes"

// Newest returns the newest release, such as v1.35.4, of a minor version, such as 1.35, on the
// module proxy.
func Newest(ctx context.Context, minor string) (string, error) {
	listed, err := run(ctx, "", "go", "list", "-m", "-versions", kubernetesModule)
	if err != nil {
		return "", err
	}
	return newestOf(strings.Fields(string(listed))[1:], minor)
}

// newestOf returns the newest of the releases of a minor version, ignoring prereleases.
func newestOf(releases []string, minor string) (string, error) {
	wanted, err := version.ParseMajorMinor(minor)
	if err != nil {
		return "", err
	}

	newest := ""
	for _, release := range releases {
		v, err := version.ParseSemantic(release)
		if err != nil || v.PreRelease() != "" || v.Major() != wanted.Major() || v.Minor() != wanted.Minor() {
			continue
		}
		if newest == "" || version.MustParseSemantic(newest).LessThan(v) {
			newest = release
		}
	}

	if newest == "" {
		return "", fmt.Errorf("no release of %s among %s", minor, strings.Join(releases, " "))
	}
	return newest, nil
}

// run runs a command and returns its standard output.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, os.Environ()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.String())
	}
	return out, nil
}
