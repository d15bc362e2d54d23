"""Plain facts for Knowledge Recall, a table per kind of question: what is asked about, and the answer."""

from __future__ import annotations


def _table(text: str) -> dict[str, str]:
    return dict(line.strip().split(": ") for line in text.strip().splitlines())


CAPITALS = _table("""
    France: Paris
    Italy: Rome
    Germany: Berlin
    Spain: Madrid
    Portugal: Lisbon
    England: London
    Ireland: Dublin
    Scotland: Edinburgh
    Austria: Vienna
    Hungary: Budapest
    Poland: Warsaw
    Greece: Athens
    Turkey: Ankara
    Russia: Moscow
    Ukraine: Kyiv
    Sweden: Stockholm
    Norway: Oslo
    Denmark: Copenhagen
    Finland: Helsinki
    Belgium: Brussels
    the Netherlands: Amsterdam
    Switzerland: Bern
    Romania: Bucharest
    Bulgaria: Sofia
    Croatia: Zagreb
    Serbia: Belgrade
    Iceland: Reykjavik
    Japan: Tokyo
    China: Beijing
    India: New Delhi
    South Korea: Seoul
    Thailand: Bangkok
    Vietnam: Hanoi
    Indonesia: Jakarta
    the Philippines: Manila
    Malaysia: Kuala Lumpur
    Pakistan: Islamabad
    Afghanistan: Kabul
    Iran: Tehran
    Iraq: Baghdad
    Lebanon: Beirut
    Syria: Damascus
    Saudi Arabia: Riyadh
    Egypt: Cairo
    Kenya: Nairobi
    Ghana: Accra
    Cuba: Havana
    Canada: Ottawa
    Australia: Canberra
    New Zealand: Wellington
    Peru: Lima
    Chile: Santiago
    Argentina: Buenos Aires
    Venezuela: Caracas
    Colombia: Bogotá
    Mexico: Mexico City
""")

CONTINENTS = _table("""
    France: Europe
    Italy: Europe
    Germany: Europe
    Spain: Europe
    Sweden: Europe
    Poland: Europe
    Greece: Europe
    Norway: Europe
    Austria: Europe
    Belgium: Europe
    Japan: Asia
    China: Asia
    India: Asia
    Vietnam: Asia
    Thailand: Asia
    Nepal: Asia
    Mongolia: Asia
    Pakistan: Asia
    South Korea: Asia
    Kenya: Africa
    Nigeria: Africa
    Ghana: Africa
    Ethiopia: Africa
    Morocco: Africa
    Uganda: Africa
    Tanzania: Africa
    Algeria: Africa
    Zambia: Africa
    Brazil: South America
    Peru: South America
    Chile: South America
    Bolivia: South America
    Argentina: South America
    Canada: North America
    Mexico: North America
""")

LANGUAGES = _table("""
    France: French
    Germany: German
    Italy: Italian
    Spain: Spanish
    Portugal: Portuguese
    Brazil: Portuguese
    Mexico: Spanish
    Argentina: Spanish
    Russia: Russian
    Poland: Polish
    Greece: Greek
    Turkey: Turkish
    Sweden: Swedish
    Norway: Norwegian
    Denmark: Danish
    Finland: Finnish
    Hungary: Hungarian
    Japan: Japanese
    China: Chinese
    Thailand: Thai
    Vietnam: Vietnamese
    Egypt: Arabic
    Iraq: Arabic
    Saudi Arabia: Arabic
    England: English
    Australia: English
    Austria: German
    Cuba: Spanish
    South Korea: Korean
    Iran: Persian
""")

OTHERS = _table("""
    What colour is grass?: green
    What colour is snow?: white
    What colour is a banana?: yellow
    What colour is blood?: red
    What colour is coal?: black
    What colour is a lemon?: yellow
    What is the opposite of hot?: cold
    What is the opposite of big?: small
    What is the opposite of up?: down
    What is the opposite of left?: right
    What is the opposite of day?: night
    What is the opposite of open?: closed
    What is the opposite of black?: white
    What is the opposite of happy?: sad
    What is frozen water called?: ice
    What is a young dog called?: puppy
    What is a young cat called?: kitten
    What is a young cow called?: calf
    What is a young sheep called?: lamb
    Which animal gives us wool?: sheep
    Which insect makes honey?: bee
    Which animal says meow?: cat
    Which organ pumps blood?: heart
    Which organ do we think with?: brain
    Which planet do we live on?: Earth
    Which planet is closest to the Sun?: Mercury
    Which planet is called the red planet?: Mars
    Which star is at the centre of the solar system?: Sun
    Which day comes after Monday?: Tuesday
    Which day comes after Friday?: Saturday
    Which month comes after March?: April
    Which month comes after June?: July
    Which month is the first of the year?: January
    Which month is the last of the year?: December
    Which ocean lies between Europe and America?: Atlantic
    Which gas do plants take in?: carbon dioxide
    Which gas do people breathe to live?: oxygen
    Which metal has the symbol Fe?: iron
    Which metal has the symbol Au?: gold
    Who wrote Hamlet?: William Shakespeare
    Who painted the Mona Lisa?: Leonardo da Vinci
    Who discovered gravity?: Isaac Newton
    Who was the first president of the United States?: George Washington
    How many days are in a week?: 7
    How many months are in a year?: 12
    How many hours are in a day?: 24
    How many legs does a spider have?: 8
    How many minutes are in an hour?: 60
""")
