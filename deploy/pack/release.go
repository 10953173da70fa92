// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Release holds the inputs of a release. The same commit and version give the same bytes.
type Release struct {
	Root     string // Berth's source
	Version  string // v1.2.3
	Revision string // the commit
	Created  time.Time
	// Repository is the destination of the image: registry.example.com/berth.
	Repository string
	// Programs maps platforms to folders of compiled programs.
	Programs map[Platform]string
	// Key, if set, is the PEM file of an ECDSA key that signs the checksums.
	Key string
}

// Platforms lists the platforms of a release. On darwin, the programs are limited to the inspection
// commands.
var Platforms = []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// ProgramsOf returns the programs of a platform, including the kubelet on Linux.
func ProgramsOf(p Platform) []string {
	if p.OS == "linux" {
		return ImagePrograms(true, false)
	}
	return programs[:1]
}

// semantic matches the versions of releases, which are semantic versions.
var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// Check rejects invalid releases.
func (r *Release) Check() error {
	if !semantic.MatchString(r.Version) {
		return fmt.Errorf("version %q: must be like v1.2.3 or v1.2.3-rc.1", r.Version)
	}
	return nil
}

// Write writes all files to a folder, which must be empty or missing.
func (r *Release) Write(folder string) error {
	if err := r.Check(); err != nil {
		return err
	}
	if entries, err := os.ReadDir(folder); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", folder)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}

	digest, err := r.writeImage(folder)
	if err != nil {
		return err
	}

	steps := []func(folder string) error{
		r.writeArchives, r.writeChart, r.writeChartArtifact, func(folder string) error { return r.writeKustomization(folder, digest) },
		r.writeInstallers, r.writeNotes, r.writeBill, r.writeProvenance, r.writeChecksums, r.signChecksums,
	}

	for _, step := range steps {
		if err := step(folder); err != nil {
			return err
		}
	}
	return nil
}

// WriteChart writes only the chart, which needs no programs, and returns its file.
func (r *Release) WriteChart(folder string) (file string, err error) {
	if err := r.Check(); err != nil {
		return "", err
	}
	return filepath.Join(folder, r.chartFile()), r.writeChart(folder)
}

func (r *Release) writeImage(folder string) (digest string, err error) {
	image := &Image{Reference: r.Repository + ":" + r.Version, Version: r.Version, Revision: r.Revision,
		Created: r.Created, Binaries: map[string]string{}}
	if image.License, err = os.ReadFile(filepath.Join(r.Root, "LICENSE")); err != nil {
		return "", err
	}
	for p, binaries := range r.Programs {
		if p.OS == "linux" {
			image.Binaries[p.Architecture] = binaries
		}
	}
	if err := image.Write(filepath.Join(folder, "berth-image-"+r.Version+".tar")); err != nil {
		return "", err
	}
	return image.Digest()
}

// writeArchives writes the programs, by platform.
func (r *Release) writeArchives(folder string) error {
	license, err := os.ReadFile(filepath.Join(r.Root, "LICENSE"))
	if err != nil {
		return err
	}

	for _, p := range r.listPlatforms() {
		files := []entry{{"LICENSE", 0o644, license}}
		for _, program := range ProgramsOf(p) {
			content, err := os.ReadFile(filepath.Join(r.Programs[p], program))
			if err != nil {
				return err
			}
			files = append(files, entry{program, 0o755, content})
		}
		if err := r.writePacked(filepath.Join(folder, r.archiveName(p)), files); err != nil {
			return err
		}
	}

	return nil
}

func (r *Release) archiveName(p Platform) string {
	return fmt.Sprintf("berth-%s-%s.tar.gz", r.Version, p)
}

func (r *Release) listPlatforms() (list []Platform) {
	for _, p := range Platforms {
		if r.Programs[p] != "" {
			list = append(list, p)
		}
	}
	return list
}

func (r *Release) chartFile() string { return "berth-chart-" + r.Version + ".tgz" }

// chartVersion returns the release's version without the v, as required by Helm and Homebrew.
func (r *Release) chartVersion() string { return strings.TrimPrefix(r.Version, "v") }

const (
	chartTree  = "deploy/chart/berth"
	chartAbout = "Chart.yaml"
)

// writeChart writes the Helm chart with the version of the release.
func (r *Release) writeChart(folder string) error {
	files, err := r.readTree(chartTree, "berth", r.editChart)
	if err != nil {
		return err
	}
	return r.writePacked(filepath.Join(folder, r.chartFile()), files)
}

// editChart converts a file of the tree's chart for the release.
func (r *Release) editChart(name, text string) string {
	switch name {
	case chartAbout:
		text = regexp.MustCompile(`(?m)^version: .*$`).ReplaceAllString(text, "version: "+r.chartVersion())
		return regexp.MustCompile(`(?m)^appVersion: .*$`).ReplaceAllString(text, "appVersion: "+r.Version)
	case "values.yaml":
		return strings.Replace(text, "repository: "+treeRepository, "repository: "+r.Repository, 1)
	}
	return text
}

// treeRepository is the image repository in the tree's manifests; a release replaces it.
const treeRepository = "registry.example.com/berth"

// writeKustomization writes the kustomization with the image's digest.
func (r *Release) writeKustomization(folder, digest string) error {
	image := regexp.MustCompile(`image: ` + regexp.QuoteMeta(treeRepository) + `:\S+`)
	files, err := r.readTree("deploy/kustomize", "kustomize", func(_, text string) string {
		return image.ReplaceAllString(text, "image: "+r.Repository+"@"+digest)
	})
	if err != nil {
		return err
	}
	return r.writePacked(filepath.Join(folder, "berth-kustomize-"+r.Version+".tar.gz"), files)
}

// writeNotes writes the changelog's section for the version, or else its Unreleased section.
func (r *Release) writeNotes(folder string) error {
	text, err := os.ReadFile(filepath.Join(r.Root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	sections := strings.Split("\n"+string(text), "\n## ")
	for _, title := range []string{strings.TrimPrefix(r.Version, "v"), r.Version, "Unreleased"} {
		for _, section := range sections[1:] {
			head, body, _ := strings.Cut(section, "\n")
			if strings.Fields(head)[0] == title {
				return os.WriteFile(filepath.Join(folder, "NOTES.md"),
					fmt.Appendf(nil, "# Berth %[1]s\n\n%[2]s\n\nTags of Go modules: `%[1]s`, and `controlplane/%[1]s` for "+
						"`github.com/berth-k8s/berth/controlplane`.\n", r.Version, strings.TrimSpace(body)), 0o644)
			}
		}
	}
	return fmt.Errorf("CHANGELOG.md says nothing of %s", r.Version)
}

// entry is a file of an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// readTree returns the files below a source folder, sorted by name. It converts each file with the
// function change.
func (r *Release) readTree(from, as string, change func(name, text string) string) (files []entry, err error) {
	root := filepath.Join(r.Root, filepath.FromSlash(from))
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(relative)
		files = append(files, entry{as + "/" + name, 0o644, []byte(change(name, string(content)))})
		return nil
	})

	slices.SortFunc(files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return files, err
}

// writePacked writes a compressed archive independent of the machine and of the current time.
func (r *Release) writePacked(file string, files []entry) error {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: r.Created.UTC(),
			Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}

	if err := archive.Close(); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
