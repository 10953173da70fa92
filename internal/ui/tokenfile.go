// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/berth-k8s/berth/internal/usage"
)

// errNoToken describes the required content of a token file.
var errNoToken = errors.New("must contain one word of 16 characters or more")

// ReadToken reads the token in a file.
func ReadToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || strings.ContainsAny(token, " \t\r\n") {
		return "", usage.Errorf("%s: %w", file, errNoToken)
	}
	return token, nil
}

// KeepToken creates a token in the file if it has none. The token outlives berth up, so that an
// open browser tab can reconnect.
func KeepToken(file string) error {
	_, err := ReadToken(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoToken) {
		return err
	}
	return os.WriteFile(file, []byte(NewToken()+"\n"), 0o600)
}
