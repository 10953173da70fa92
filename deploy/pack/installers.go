// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"text/template"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// This file writes the files for installing Berth with Helm, krew and Homebrew.

// writeChartArtifact writes the packed chart in Helm's registry format: an OCI artifact with
// Chart.yaml as its configuration and the packed chart as its only layer.
func (r *Release) writeChartArtifact(folder string) error {
	chart, err := os.ReadFile(filepath.Join(folder, r.chartFile()))
	if err != nil {
		return err
	}
	about, err := os.ReadFile(filepath.Join(r.Root, chartTree, chartAbout))
	if err != nil {
		return err
	}
	config, err := yaml.YAMLToJSON([]byte(r.editChart(chartAbout, string(about))))
	if err != nil {
		return err
	}

	return writeLayout(filepath.Join(folder, "berth-chart-"+r.Version+".oci.tar"), r.Created, func(path layout.Path) error {
		manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: map[string]string{
			"org.opencontainers.image.title":   "berth",
			"org.opencontainers.image.version": r.chartVersion(),
			"org.opencontainers.image.created": r.Created.UTC().Format(time.RFC3339),
		}}
		if manifest.Config, err = writeBlob(path, "application/vnd.cncf.helm.config.v1+json", config); err != nil {
			return err
		}
		layer, err := writeBlob(path, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", chart)
		if err != nil {
			return err
		}
		manifest.Layers = []v1.Descriptor{layer}
		text, err := json.Marshal(manifest)
		if err != nil {
			return err
		}
		described, err := writeBlob(path, types.OCIManifestSchema1, text)
		if err != nil {
			return err
		}
		described.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.chartVersion()}
		return path.AppendDescriptor(described)
	})
}

func writeBlob(path layout.Path, kind types.MediaType, content []byte) (v1.Descriptor, error) {
	hash, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: kind, Digest: hash, Size: size}, path.WriteBlob(hash, io.NopCloser(bytes.NewReader(content)))
}

// krew is the manifest used by kubectl's plugin manager to install kubectl berth.
var krew = template.Must(template.New("krew").Parse(`apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: berth
spec:
  version: {{.Version}}
  homepage: https://github.com/berth-k8s/berth
  shortDescription: Explain placements, forecast changes
  description: |
    Why is this pod pending, and what would help? What would happen if this
    node were drained? Who has to leave, and when? kubectl berth reads a
    cluster, changes nothing, and answers with the engine that schedules.
  platforms:
{{- range .Archives}}
  - selector:
      matchLabels:
        os: {{.OS}}
        arch: {{.Architecture}}
    uri: {{.URL}}
    sha256: {{.Sum}}
    bin: berth
    files:
    - from: berth
      to: .
    - from: LICENSE
      to: .
{{- end}}
`))

// formula is used by Homebrew to install the commands from a tap.
var formula = template.Must(template.New("formula").Parse(`class Berth < Formula
  desc "Explain placements in a Kubernetes cluster, and forecast changes"
  homepage "https://github.com/berth-k8s/berth"
  version "{{.Number}}"
  license "Apache-2.0"
{{range .Archives}}
  on_{{if eq .OS "darwin"}}macos{{else}}{{.OS}}{{end}} do
    on_{{if eq .Architecture "amd64"}}intel{{else}}arm{{end}} do
      url "{{.URL}}"
      sha256 "{{.Sum}}"
    end
  end
{{end}}
  def install
    bin.install "berth"
    generate_completions_from_executable(bin/"berth", "completion")
  end

  test do
    assert_match "v#{version}", shell_output("#{bin}/berth version")
  end
end
`))

func (r *Release) writeInstallers(folder string) error {
	type archive struct {
		Platform
		URL, Sum string
	}
	var archives []archive
	for _, p := range r.listPlatforms() {
		name := r.archiveName(p)
		sum, err := sumOf(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		archives = append(archives, archive{p, "https://github.com/berth-k8s/berth/releases/download/" + r.Version + "/" + name, sum})
	}

	for name, text := range map[string]*template.Template{"berth-krew-" + r.Version + ".yaml": krew, "berth.rb": formula} {
		var out bytes.Buffer
		if err := text.Execute(&out, map[string]any{"Version": r.Version, "Number": r.chartVersion(), "Archives": archives}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
