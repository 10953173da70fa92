// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// inUTF8 returns a reader of the file's text in UTF-8. The file may be in UTF-16, with or without a
// byte order mark, as written by PowerShell for kubectl get -o yaml > file.
func inUTF8(reader *bufio.Reader) *bufio.Reader {
	ahead, _ := reader.Peek(2)
	// The file is too short to be anything but UTF-8.
	if len(ahead) < 2 {
		return reader
	}
	order := unicode.LittleEndian
	switch first, second := ahead[0], ahead[1]; {
	case first == 0xff && second == 0xfe, first == 0xfe && second == 0xff: // a mark, which determines the order
	case first != 0 && second == 0: // a manifest begins with an ASCII character
	case first == 0 && second != 0:
		order = unicode.BigEndian
	default:
		return reader
	}
	decoder := unicode.UTF16(order, unicode.UseBOM).NewDecoder()
	return bufio.NewReaderSize(transform.NewReader(reader, decoder), 1<<16)
}
