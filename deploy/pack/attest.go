// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// This file writes the attestations of a release: its provenance, and the signed checksums.

// writeProvenance writes the provenance of the files: an in-toto statement with SLSA's predicate.
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
				"buildType":          "https://github.com/berth-k8s/berth/blob/main/docs/contribute/release.md",
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

// signChecksums signs the checksums, if there is a key, like `cosign sign-blob --key` and `openssl
// dgst -sha256 -sign`.
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
