// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	yamldocument "github.com/berth-k8s/berth/internal/engine/config/document"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/owned"
	"github.com/berth-k8s/berth/internal/usage"
)

// ReadFiles reads the named manifests and recordings. A recording is read unchanged, as of its end.
func (q *Question) ReadFiles(cmd *cobra.Command) (*manifest.Set, simulate.Source, error) {
	source := simulate.Source{From: strings.Join(q.Files, ", ")}
	recording := slices.IndexFunc(q.Files, isRecording)
	set, err := readManifests(cmd, q.Files, manifest.Options{Recursive: q.recursive, Lenient: recording >= 0, Strict: q.Strict})
	if err != nil || recording < 0 {
		return set, source, err
	}
	index, err := record.ReadIndex(q.Files[recording])
	if err != nil {
		return nil, source, err
	}
	source.AsOf = index.Source.AsOf
	return set, source, nil
}

func isRecording(path string) bool {
	_, err := os.Stat(filepath.Join(path, record.IndexFile))
	return err == nil
}

// readRecording reads a recording as of the requested time.
func (q *Question) readRecording(cmd *cobra.Command) (*manifest.Set, simulate.Source, error) {
	source := simulate.Source{}
	if len(q.Files) != 1 || !isRecording(q.Files[0]) {
		return nil, source, usage.Errorf("--at %s: needs one recording, with -f DIR", q.At)
	}
	index, err := record.ReadIndex(q.Files[0])
	if err != nil {
		return nil, source, err
	}

	at, err := time.Parse(time.RFC3339, q.At)
	if before, notDuration := time.ParseDuration(q.At); notDuration == nil && before <= 0 {
		at, err = index.Source.AsOf.Add(before), nil
	}
	if err != nil {
		return nil, source, usage.Errorf("--at %q: must be a time such as 2026-11-20T10:00:00Z, or an offset from the end such as -5m",
			q.At)
	}
	set, err := record.At(q.Files[0], at)
	if err == nil {
		printMissing(q.notices(cmd), index.MissingAt(at))
	}
	return set, simulate.Source{From: q.Files[0], AsOf: metav1.NewTime(at)}, err
}

// readManifests reads manifests and recordings, and prints notices about them.
func readManifests(cmd *cobra.Command, files []string, options manifest.Options) (*manifest.Set, error) {
	if i := slices.IndexFunc(files, isRecording); i >= 0 && options.Recursive {
		return nil, usage.Errorf("--recursive: cannot be used with the recording %s, whose subfolders are its history", files[i])
	}
	fetch, _ := cmd.Flags().GetBool(fetchFlag) // false if the flag does not exist
	options.Kustomize = newKustomizer(fetch)
	set, err := manifest.Read(files, cmd.InOrStdin(), options)
	if err == nil {
		printClocks(cmd.ErrOrStderr(), set)
		err = limitToRecorded(cmd.ErrOrStderr(), files, set)
	}
	return set, err
}

// limitToRecorded reports the kinds missing from the recordings among the files. If kinds are
// missing, the set does not count as a whole cluster.
func limitToRecorded(stderr io.Writer, files []string, set *manifest.Set) error {
	for _, path := range files {
		if !isRecording(path) {
			continue
		}
		index, err := record.ReadIndex(path)
		if err != nil {
			return err
		}
		missing := index.MissingAt(index.Source.AsOf.Add(time.Second)) // AsOf is in whole seconds
		printMissing(stderr, missing)
		set.Whole = set.Whole && len(missing) == 0
	}
	return nil
}

// printMissing reports the kinds that could not be read from a cluster or for its recording.
func printMissing(stderr io.Writer, kinds []string) {
	for _, kind := range kinds {
		print.Line(stderr, "not read: %s", kind)
	}
}

// printClocks reports the nodes with implausible clocks. Call it before the set is consumed.
func printClocks(stderr io.Writer, set *manifest.Set) {
	if ahead := simulate.ClocksAhead(set); len(ahead) > 0 {
		print.Line(stderr, "timestamps ahead of the other nodes' clocks, ignored: those of %s",
			answer.List(len(ahead), func(i int) string { return ahead[i] }))
	}
}

// PrintIgnored reports inputs that were ignored or modified.
func PrintIgnored(stderr io.Writer, set *manifest.Set) {
	if len(set.Elsewhere) > 0 {
		nodes, pods := slices.Sorted(maps.Keys(set.Elsewhere)), 0
		for _, n := range set.Elsewhere {
			pods += n
		}
		print.Line(stderr, "bound to nodes missing from the input, kept as bound elsewhere (--strict refuses them): %s on %s",
			answer.Count(pods, "pod"), answer.List(len(nodes), func(i int) string { return nodes[i] }))
	}
	for _, warning := range set.Warnings {
		print.Line(stderr, "%s", warning)
	}
	if len(set.Ignored) > 0 {
		list := answer.Mapped(slices.Sorted(maps.Keys(set.Ignored)),
			func(kind string) string { return fmt.Sprintf("%d %s", set.Ignored[kind], kind) })
		print.Line(stderr, "not used: %s", strings.Join(list, ", "))
	}
}

// fetchFlag is the flag that lets -k fetch.
const fetchFlag = "fetch"

// newKustomizer returns a function that builds a folder's manifests like kubectl kustomize: in the
// same order, and without plugins, which would execute the folder author's programs. Unless fetch
// is set, it does not contact any host either: inspecting a received folder must not be observable.
func newKustomizer(fetch bool) func(folder string) ([]byte, error) {
	if fetch {
		return kustomizeFolder
	}
	return func(folder string) ([]byte, error) {
		defer goOffline()()
		text, err := kustomizeFolder(folder)
		if err != nil && (errors.Is(err, errOffline) || strings.Contains(err.Error(), errOffline.Error()) ||
			strings.Contains(err.Error(), "no 'git' program")) {
			err = fmt.Errorf("%w: nothing is fetched without --%s", err, fetchFlag)
		}
		return text, err
	}
}

var errOffline = errors.New("the kustomization refers to another host")

// goOffline keeps the kustomize library, which lacks such an option, from making requests and from
// running git until the returned function is called. The change is global, which is safe because a
// command reads its files before it does anything else.
func goOffline() (end func()) {
	path, transport := os.Getenv("PATH"), http.DefaultTransport
	http.DefaultTransport = refusing{}
	_ = os.Setenv("PATH", "") // prevents git from being found
	return func() {
		http.DefaultTransport = transport
		_ = os.Setenv("PATH", path)
	}
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errOffline }

// regular reads regular files only (see [owned.Open]), and rejects files with memory-exhausting
// aliases: the kustomize library expands them without a limit.
type regular struct{ filesys.FileSystem }

func (regular) ReadFile(path string) ([]byte, error) {
	text, err := owned.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if most := 1_000_000 + 10*len(text); yamldocument.Expanded(string(text)) > most {
		return nil, fmt.Errorf("%s: its aliases stand for more than %d values", path, most)
	}
	return text, nil
}

func kustomizeFolder(folder string) ([]byte, error) {
	if !pathExists(folder) {
		return nil, fmt.Errorf("-k %s: there is no such folder", folder)
	}
	names := konfig.RecognizedKustomizationFileNames()
	if !slices.ContainsFunc(names, func(name string) bool { return pathExists(filepath.Join(folder, name)) }) {
		return nil, fmt.Errorf("-k %s: the folder has no %s", folder, strings.Join(names, " or "))
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified // keeps the order of kubectl kustomize
	made, err := krusty.MakeKustomizer(options).Run(regular{filesys.MakeFsOnDisk()}, folder)
	if err != nil {
		return nil, fmt.Errorf("-k %s: %w", folder, err)
	}
	return made.AsYaml()
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
