package pack

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What a release says of itself: what is in it, how it was made, and that it is as it was made.

// writeBill lists the modules that the programs are built from, as an SPDX document.
func (r *Release) writeBill(folder string) error {
	type checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	type reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}

	type part struct {
		ID         string      `json:"SPDXID"`
		Name       string      `json:"name"`
		Version    string      `json:"versionInfo"`
		Download   string      `json:"downloadLocation"`
		License    string      `json:"licenseConcluded"`
		Declared   string      `json:"licenseDeclared"`
		Copyright  string      `json:"copyrightText"`
		Analyzed   bool        `json:"filesAnalyzed"`
		Checksums  []checksum  `json:"checksums,omitempty"`
		References []reference `json:"externalRefs,omitempty"`
	}

	type relation struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
	const none = "NOASSERTION"
	modules, compiler, err := r.listModules()
	if err != nil {
		return err
	}

	packages := []part{{
		ID: "SPDXRef-berth", Name: "github.com/berth-k8s/berth", Version: r.Version,
		Download: "git+https://github.com/berth-k8s/berth@" + r.Revision,
		License:  "Apache-2.0", Declared: "Apache-2.0", Copyright: none,
		References: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/github.com/berth-k8s/berth@" + r.Version}},
	}, {
		ID: "SPDXRef-go", Name: "std", Version: strings.TrimPrefix(compiler, "go"), Download: "https://go.dev/dl/", License: "BSD-3-Clause",
		Declared: "BSD-3-Clause", Copyright: none,
		References: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/std@" + strings.TrimPrefix(compiler, "go")}},
	}}

	relations := []relation{{"SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-berth"}, {"SPDXRef-berth", "DEPENDS_ON", "SPDXRef-go"}}
	for i, path := range slices.Sorted(maps.Keys(modules)) {
		m := modules[path]
		p := part{
			ID: fmt.Sprintf("SPDXRef-module-%d", i+1), Name: path, Version: m.version, Download: none, License: none,
			Declared: none, Copyright: none,
			References: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + m.version}},
		}
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, "h1:")); err == nil && len(sum) == sha256.Size {
			p.Checksums = []checksum{{"SHA256", hex.EncodeToString(sum)}}
		}
		packages = append(packages, p)
		relations = append(relations, relation{"SPDXRef-berth", "DEPENDS_ON", p.ID})
	}

	return writeJSON(filepath.Join(folder, "berth-"+r.Version+".spdx.json"), map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "berth-" + r.Version,
		"documentNamespace": "https://github.com/berth-k8s/berth/releases/" + r.Version + "/" + r.Revision,
		"creationInfo":      map[string]any{"created": r.Created.UTC().Format(time.RFC3339), "creators": []string{"Tool: berth-release"}},
		"packages":          packages, "relationships": relations,
	})
}

type module struct{ version, sum string }

// listModules are what the programs say that they are built from; they must agree.
func (r *Release) listModules() (all map[string]module, compiler string, err error) {
	all = map[string]module{}
	for _, p := range r.listPlatforms() {
		for _, program := range ProgramsOf(p) {
			info, err := buildinfo.ReadFile(filepath.Join(r.Programs[p], program))
			if err != nil {
				return nil, "", fmt.Errorf("%s for %s: %w", program, p, err)
			}
			compiler = info.GoVersion
			if !strings.HasPrefix(info.Main.Path, "github.com/berth-k8s/berth") { // the kubelet is a program of another module
				info.Deps = append(info.Deps, &info.Main)
			}
			for _, m := range info.Deps {
				if m.Replace != nil {
					m = m.Replace
				}
				if known, there := all[m.Path]; there && known.version != m.Version {
					return nil, "", fmt.Errorf("%s is built from %s at %s and at %s", p, m.Path, known.version, m.Version)
				}
				all[m.Path] = module{m.Version, m.Sum}
			}
		}
	}
	return all, compiler, nil
}

// writeProvenance says how the files were made: an in-toto statement with SLSA's predicate.
func (r *Release) writeProvenance(folder string) error {
	_, compiler, err := r.listModules()
	if err != nil {
		return err
	}

	type subject struct {
		Name   string            `json:"name"`
		Digest map[string]string `json:"digest"`
	}
	var subjects []subject
	names, err := filesOf(folder)
	if err != nil {
		return err
	}

	for _, name := range names {
		sum, err := sumOf(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		subjects = append(subjects, subject{name, map[string]string{"sha256": sum}})
	}

	return writeJSON(filepath.Join(folder, "berth-"+r.Version+".intoto.json"), map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          "https://github.com/berth-k8s/berth/blob/main/docs/release.md",
				"externalParameters": map[string]any{"version": r.Version, "repository": r.Repository},
				"internalParameters": map[string]any{"go": compiler},
				"resolvedDependencies": []map[string]any{{
					"uri": "git+https://github.com/berth-k8s/berth", "digest": map[string]string{"gitCommit": r.Revision},
				}},
			},
			"runDetails": map[string]any{"builder": map[string]any{"id": "https://github.com/berth-k8s/berth/blob/main/Makefile"}},
		},
	})
}

// sumsFile has the checksums of all other files.
const sumsFile = "SHA256SUMS"

func (r *Release) writeChecksums(folder string) error {
	names, err := filesOf(folder)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range names {
		sum, err := sumOf(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	return os.WriteFile(filepath.Join(folder, sumsFile), []byte(b.String()), 0o644)
}

// signChecksums signs the checksums, if there is a key, as `cosign sign-blob --key` and `openssl
// dgst -sha256 -sign` do.
func (r *Release) signChecksums(folder string) error {
	if r.Key == "" {
		return nil
	}
	text, err := os.ReadFile(r.Key)
	if err != nil {
		return err
	}

	key, err := signingKey(text)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Key, err)
	}

	sums, err := os.ReadFile(filepath.Join(folder, sumsFile))
	if err != nil {
		return err
	}

	digest := sha256.Sum256(sums)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, sumsFile+".sig"), []byte(base64.StdEncoding.EncodeToString(signature)+"\n"), 0o644)
}

func signingKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("is no PEM file")
	}
	if block.Type == "EC PRIVATE KEY" {
		return x509.ParseECPrivateKey(block.Bytes)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("must be an ECDSA key")
	}
	return private, nil
}

func filesOf(folder string) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func sumOf(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

func writeJSON(file string, document any) error {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
