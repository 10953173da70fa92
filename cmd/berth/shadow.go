// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/controllershadow"
)

func newShadowReport() *cobra.Command {
	format := "markdown"
	cmd := &cobra.Command{
		Use:   "report FILE|URL|-...",
		Short: "Write a report on what shadows found",
		Args:  parse.Some("no report specified: use a file, a URL, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var all controllershadow.Reports
			for _, from := range args {
				text, err := readReport(cmd.Context(), from, cmd.InOrStdin())
				if err != nil {
					return err
				}
				read, err := controllershadow.Read(text)
				if err != nil {
					return fmt.Errorf("%s: not a shadow report: %w", from, err)
				}
				all.Merge(read)
			}

			if all.Controller == nil && all.Scheduler == nil {
				return fmt.Errorf("%s: contains no shadow report", strings.Join(args, ", "))
			}
			switch out := cmd.OutOrStdout(); format {
			case "markdown":
				return all.WriteMarkdown(out)
			case "html":
				return all.WriteHTML(out)
			case "json", "yaml":
				return answer.Write(out, format, all, nil)
			}
			return usagef("--output %q: must be markdown, html, json or yaml", format)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "markdown, html (a single self-contained file), json or yaml")
	return cmd
}

// longestReport limits the bytes read. A report is a few kilobytes.
const longestReport = 16 << 20

func readReport(ctx context.Context, from string, in io.Reader) ([]byte, error) {
	switch {
	case from == "-":
		return io.ReadAll(io.LimitReader(in, longestReport))
	case strings.HasPrefix(from, "http://"), strings.HasPrefix(from, "https://"):
		response, text, err := query.Fetch(ctx, http.DefaultClient, from, 30*time.Second)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s: want the /shadow of berth controller --shadow", from, response.Status)
		}
		return text, err
	}
	return os.ReadFile(from)
}
