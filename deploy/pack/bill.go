// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// writeBill lists the programs' modules (SBOM) as an SPDX document.
func (r *Release) writeBill(folder string) error {
	modules, compiler, err := r.listModules()
	if err != nil {
		return err
	}

	berth := describePackage("berth", "github.com/berth-k8s/berth", r.Version, "Apache-2.0")
	berth.PackageDownloadLocation = "git+https://github.com/berth-k8s/berth@" + r.Revision
	std := describePackage("go", "std", strings.TrimPrefix(compiler, "go"), "BSD-3-Clause")
	std.PackageDownloadLocation = "https://go.dev/dl/"
	bill := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: "berth-" + r.Version,
		DocumentNamespace: "https://github.com/berth-k8s/berth/releases/" + r.Version + "/" + r.Revision,
		CreationInfo: &spdx.CreationInfo{
			Created: r.Created.UTC().Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "berth-release"}},
		},
		Packages:      []*spdx.Package{berth, std},
		Relationships: []*spdx.Relationship{relate("DOCUMENT", common.TypeRelationshipDescribe, "berth")},
	}

	for i, path := range slices.Sorted(maps.Keys(modules)) {
		m := describePackage(common.ElementID(fmt.Sprintf("module-%d", i+1)), path, modules[path].version, noAssertion)
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(modules[path].sum, "h1:"))
		if err == nil && len(sum) == sha256.Size {
			m.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum)}}
		}
		bill.Packages = append(bill.Packages, m)
	}
	for _, p := range bill.Packages[1:] {
		bill.Relationships = append(bill.Relationships, relate("berth", common.TypeRelationshipDependsOn, p.PackageSPDXIdentifier))
	}

	file, err := os.Create(filepath.Join(folder, "berth-"+r.Version+".spdx.json"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := json.Write(bill, file, json.Indent("  "), json.EscapeHTML(false)); err != nil {
		return err
	}
	return file.Close()
}

// noAssertion is the value for a module's licence and copyright, which its checksum does not
// reveal.
const noAssertion = "NOASSERTION"

func describePackage(id common.ElementID, path, version, license string) *spdx.Package {
	return &spdx.Package{
		PackageSPDXIdentifier: id, PackageName: path, PackageVersion: version, PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: license, PackageLicenseDeclared: license, PackageCopyrightText: noAssertion,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + path + "@" + version,
		}},
	}
}

func relate(from common.ElementID, relationship string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{
		RefA: common.DocElementID{ElementRefID: from}, Relationship: relationship, RefB: common.DocElementID{ElementRefID: to},
	}
}

type module struct{ version, sum string }

// listModules returns the modules recorded in the programs, which must agree.
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
