package disk

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/novox/mesh/appliance"
)

// Size is a number of bytes, written by people as 64M or 1.5G.
type Size uint64

const units = "KMGT" // each 1024 of the one before

func (s Size) String() string {
	if s < 1<<10 {
		return strconv.FormatUint(uint64(s), 10) + " B"
	}
	value, unit := float64(s), -1
	for value >= 1<<10 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.4g %ciB", value, units[unit])
}

// written is a number and maybe a unit: 64M, 1.5 GiB.
var written = regexp.MustCompile(`(?i)^([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMGT]?)(?:i?B)?$`)

// Set reads what a person wrote.
func (s *Size) Set(text string) error {
	m := written.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return appliance.Errorf(appliance.Invalid, "%s is no size such as 512M or 2G", appliance.Quote(text))
	}
	value, err := strconv.ParseFloat(m[1], 64)
	if m[2] != "" {
		value *= float64(uint64(1) << (10 * (1 + strings.Index(units, strings.ToUpper(m[2])))))
	}
	if err != nil || value > 1<<60 {
		return appliance.Errorf(appliance.Invalid, "%s is larger than any disk", appliance.Quote(text))
	}
	*s = Size(value)
	return nil
}
